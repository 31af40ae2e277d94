"""A kernel in its sandbox, driven as a worker drives it: the loop runs in the main thread, step by step."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner.orchestration.bundle import write_worker_zipapp
from openai4s_provisioner.sandbox.bubblewrap import Bubblewrap
from openai4s_provisioner.sandbox.home import prepare_session_home
from openai4s_provisioner.sandbox.interpreter import interpreter_prefixes
from openai4s_provisioner.sandbox.policy import session_spec
from openai4s_provisioner.sandbox.seam import Sandbox
from openai4s_provisioner.sandbox.spec import SandboxSpec
from openai4s_provisioner.transport.loop import Loop
from openai4s_provisioner.worker.confined import ConfinedKernel

KEY = "a-key-for-the-messages"
IPYKERNEL = (sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}")


@dataclass
class Node:
    """One machine with a worker's folders on it, and the kernels started so far."""

    root: Path
    program: Path
    spec: SandboxSpec
    key: str = KEY
    loop: Loop = field(default_factory=Loop)
    kernels: list[ConfinedKernel] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def launch(self, argv: tuple[str, ...] = IPYKERNEL, cwd: str = "", **env: str) -> dict[str, Any]:
        return {
            "launch_id": f"launch-{len(self.kernels)}",
            "argv": list(argv),
            "env": {"PATH": os.environ["PATH"], "SECRET": "only-for-the-kernel", **env},
            "cwd": cwd or str(self.root / "work"),
            "key": KEY,
            "signature_scheme": "hmac-sha256",
            "kernel_name": "python3",
        }

    def start(
        self,
        launch: dict[str, Any] | None,
        *,
        spec: SandboxSpec | None = None,
        nonce_name: str = "",
        sandbox: Sandbox | None = None,
    ) -> ConfinedKernel:
        kernel = ConfinedKernel(
            self.loop,
            sandbox=sandbox or Bubblewrap(),
            spec=spec or self.spec,
            launch=launch,
            workspace={"path": (spec or self.spec).workspace, "nonce_name": nonce_name},
            rank=0,
            scratch=str(self.root / "scratch"),
            program=str(self.program),
            on_event=self.events.append,
        )
        self.kernels.append(kernel)
        kernel.start()
        return kernel

    def run_until(self, condition: Callable[[], Any], what: str, deadline_s: float = 20.0) -> Any:
        """Turn the loop until the condition holds; its first true value."""
        deadline = time.monotonic() + deadline_s
        while not (value := condition()):
            if time.monotonic() > deadline:
                pytest.fail(f"still not true after {deadline_s:g} s: {what}; events: {self.events}")
            self.loop.call_later(0.02, int)
            self.loop._turn()
        return value

    def wait_for(self, kind: str, deadline_s: float = 20.0) -> dict[str, Any]:
        found = self.run_until(lambda: [e for e in self.events if e["type"] == kind], f"an event {kind}", deadline_s)
        return dict(found[0])


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_worker_zipapp(tmp_path_factory.mktemp("exchange"))


@pytest.fixture
def node(place: Any, program: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    root = place.root
    for name in ("work", "scratch", "state", "session-home"):
        (root / name).mkdir(mode=0o700, exist_ok=True)
    (root / "state" / "secret").write_text("the server's secret")
    prepare_session_home(str(root / "session-home"))
    spec = session_spec(
        workspace=str(root / "work"),
        home=str(place.home),
        home_source=str(root / "session-home"),
        state_paths=[str(root / "state")],
        jupyter_paths=[],
        prefixes=interpreter_prefixes(),
    )
    made = Node(root, program, spec)
    yield made
    for kernel in made.kernels:
        kernel.close()
    made.loop.close()
