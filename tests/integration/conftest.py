"""Sessions for tests: a real kernel manager with Jupyter's restarter, over the real control plane of this process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.ioloop.manager import AsyncIOLoopKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from traitlets.config import Config

from openai4s_provisioner.app import ControlPlane
from openai4s_provisioner.jupyter import kernelspecs
from openai4s_provisioner.orchestration.config import Policy, default_config
from openai4s_provisioner.orchestration.store import Situation, Store
from openai4s_provisioner.testing.control_lab import in_lab
from openai4s_provisioner.testing.faulty_backends import ManualClock

DEADLINE_S = 40.0
QUICK = Policy(call_deadline_s=0.2)
Runs = Callable[..., None]


@dataclass
class SessionLab:
    """One kernel in a session, and everything a test wants to know of it."""

    manager: AsyncIOLoopKernelManager
    work: Path
    client: AsyncKernelClient | None = None
    workload_id: str = ""

    async def start(self) -> None:
        await self.manager.start_kernel(cwd=str(self.work))
        await self.connect()

    async def connect(self) -> None:
        if self.client is not None:
            self.client.stop_channels()
        self.client = self.manager.client()
        self.client.start_channels()
        await self.client.wait_for_ready(timeout=DEADLINE_S)

    async def run(self, code: str, timeout_s: float = DEADLINE_S) -> dict[str, Any]:
        """Execute; the reply's content."""
        assert self.client is not None
        reply = await self.client.execute_interactive(code, timeout=timeout_s, output_hook=lambda message: None)
        content: dict[str, Any] = reply["content"]
        return content

    async def value(self, expression: str) -> str:
        assert self.client is not None
        reply = await self.client.execute_interactive(
            "", user_expressions={"v": expression}, timeout=DEADLINE_S, output_hook=lambda message: None
        )
        found = reply["content"]["user_expressions"]["v"]
        return str(found["data"]["text/plain"] if found["status"] == "ok" else found["ename"])

    async def begin(self, code: str) -> str:
        """Execute without waiting for the end; returns once the code itself runs (an interrupt before is swallowed)."""
        assert self.client is not None
        # With stop_on_error, the kernel may abort what is asked right after the interrupt.
        message_id = self.client.execute(f"print('running', flush=True)\n{code}", stop_on_error=False)
        while True:
            message = await self.client.get_iopub_msg(timeout=DEADLINE_S)
            if message["msg_type"] == "stream" and message["parent_header"].get("msg_id") == message_id:
                return str(message_id)

    async def reply_to(self, message_id: str, timeout_s: float = DEADLINE_S) -> dict[str, Any]:
        assert self.client is not None
        while True:
            reply = await self.client.get_shell_msg(timeout=timeout_s)
            if reply["parent_header"].get("msg_id") == message_id:
                content: dict[str, Any] = reply["content"]
                return content

    async def situation(self) -> Situation:
        """The stored rows of this kernel's session."""
        running = self.control._running
        assert running is not None
        live = running.kernels._live.get(self.manager.kernel_id)
        if live is not None:
            self.workload_id = live.workload_id
        situation = await asyncio.wrap_future(running.sessions._store.submit(Store.situation, self.workload_id))
        assert situation is not None
        return situation

    @property
    def control(self) -> ControlPlane:
        provisioner: Any = self.manager.provisioner
        control: ControlPlane = provisioner._control
        return control

    async def until(self, condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
        """Wait on the loop, which Jupyter's restarter needs, until `condition` holds."""
        deadline = time.monotonic() + deadline_s
        while not (value := condition()):
            assert time.monotonic() < deadline, f"still not true after {deadline_s:g} s: {what}"
            await asyncio.sleep(0.02)
        return value


def processes_below(root: Path, *words: str) -> list[psutil.Process]:
    """Living processes of this test whose command line holds all of `words`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            ours = str(root) in line or any(str(root) in value for value in process.environ().values())
            lives = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if lives and ours and all(word in line for word in words):
                found.append(process)
    return found


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> ManualClock:
    """Of the control planes that `runs` makes; the test moves it."""
    return ManualClock()


@pytest.fixture
def runs(tmp_path: Path, clock: ManualClock) -> Runs:
    """`runs(scenario, *backends, **options)`: with a whole control plane over them, as `in_lab` has it."""
    return functools.partial(in_lab, tmp_path, clock=clock)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend's failure backs its workload off in real time; tests look past that."""
    monkeypatch.setattr("openai4s_provisioner.orchestration.reconciler._FIRST_PAUSE_S", 0.0)


@pytest.fixture
def runs_quickly(runs: Runs, no_pauses: None) -> Runs:
    """The same, where backends fail and hang."""
    return functools.partial(runs, policy=QUICK)


@pytest.fixture
def work(place: Any) -> Path:
    folder: Path = place.root / "work"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def session_kernel(place: Any) -> str:
    """The name of the installed session kernelspec of the default profile."""
    profile = default_config().profiles["default"]
    return kernelspecs.install(KernelSpecManager(), "python3", profile).name


@pytest.fixture
def control_planes() -> Iterator[None]:
    """Stops every control plane that a test started in this process."""
    yield
    for control in list(ControlPlane._shared.values()):
        control.stop()


@pytest.fixture
def lab_config() -> Config:
    """Traits for the lab's kernel manager; a test that wants others overrides this fixture."""
    return Config()


@pytest.fixture
async def lab(
    work: Path, session_kernel: str, lab_config: Config, control_planes: None, anyio_backend: str
) -> AsyncIterator[SessionLab]:
    lab = SessionLab(AsyncIOLoopKernelManager(kernel_name=session_kernel, config=lab_config), work)
    yield lab
    if lab.client is not None:
        lab.client.stop_channels()
    if lab.manager.has_kernel:
        await lab.manager.shutdown_kernel(now=True)
    lab.manager.context.destroy(linger=0)
