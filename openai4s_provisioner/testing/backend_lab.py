"""The bench on which a backend is tested: where it keeps its state, how to open it, and how to watch what it runs.

A backend's tests make one `BackendLab` per test in a fixture and call `end_everything` afterwards.
It steers and watches allocations through files and the process table only, never through the backend under test.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai4s_provisioner.orchestration.errors import CouldNotAsk
from openai4s_provisioner.orchestration.models import ExternalHandle, ResourceProfile
from openai4s_provisioner.orchestration.ports import (
    AllocationBackend,
    AllocationRequest,
    Created,
    Existing,
    Observation,
    Observed,
    SubmitResult,
)

_TINY_PROGRAM = Path(__file__).with_name("tiny_program.py")
_LOOK_AGAIN_S = 0.05
OVER = frozenset({Observed.COMPLETED, Observed.FAILED, Observed.CANCELLED, Observed.GONE})


@dataclass(frozen=True)
class BackendLab:
    """`exchange_dir` is visible where allocations run. `refused_profile` is one that the backend must refuse."""

    factory: str  # "module:callable", as an entry point names it
    state_dir: Path
    exchange_dir: Path
    profile: ResourceProfile
    refused_profile: ResourceProfile
    options: Mapping[str, Any] = field(default_factory=dict)
    absent_handle: str = "never-existed"  # well-formed, and of no allocation
    patience_s: float = 30.0  # the longest any one expected change may take

    def open_backend(self) -> AllocationBackend:
        """A new backend over the same state, as after a restart of the server."""
        module, _, name = self.factory.partition(":")
        factory = getattr(importlib.import_module(module), name)
        backend: AllocationBackend = factory(
            state_dir=self.state_dir, exchange_dir=self.exchange_dir, options=self.options
        )
        return backend

    def request(self, behaviour: str = "wait", profile: ResourceProfile | None = None) -> AllocationRequest:
        """Of a tiny program with this behaviour (see tiny_program.py), under a fresh token."""
        attempt = self.exchange_dir / f"attempt-{uuid.uuid4().hex[:12]}"
        attempt.mkdir(parents=True)
        program = Path(shutil.copy(_TINY_PROGRAM, attempt))
        return AllocationRequest(
            token=uuid.uuid4().hex,
            allocation_id=f"alloc-{uuid.uuid4().hex}",
            workload_id=f"work-{uuid.uuid4().hex}",
            profile=profile or self.profile,
            program=(str(program), str(attempt), behaviour),
            attempt_dir=attempt,
        )

    def let_exit(self, request: AllocationRequest, exit_code: int = 0) -> None:
        ready = request.attempt_dir / ".exit"
        ready.write_text(str(exit_code))
        ready.rename(request.attempt_dir / "exit")

    def environment(self, request: AllocationRequest) -> dict[str, str]:
        seen: dict[str, str] = json.loads((request.attempt_dir / "environment").read_text())
        return seen

    def started(self, request: AllocationRequest) -> list[int]:
        """Pids of every process that ever ran for this request, its descendants included."""
        return [pid for pid, _ in _shown(request.attempt_dir)]

    def alive(self, request: AllocationRequest) -> list[int]:
        return [pid for pid, started in _shown(request.attempt_dir) if _lives(pid, started)]

    async def submitted(
        self, backend: AllocationBackend, request: AllocationRequest, processes: int = 1
    ) -> ExternalHandle:
        """Submit and wait until as many of its processes have shown themselves."""
        handle = handle_of(await backend.submit(request))
        await self.until(lambda: len(self.started(request)) >= processes, "the program to start")
        return handle

    async def ended(self, backend: AllocationBackend, handle: ExternalHandle) -> Observation:
        """The first observation that says it is over."""
        last = Observation(Observed.UNKNOWN)

        async def is_over() -> bool:
            nonlocal last
            last = (await backend.observe([handle]))[handle]
            return last.state in OVER

        await self.until(is_over, "the allocation to be over")
        return last

    async def found(self, backend: AllocationBackend, token: str) -> ExternalHandle | None:
        """What the backend says once it can say."""
        answer: ExternalHandle | None = None

        async def could_say() -> bool:
            nonlocal answer
            try:
                answer = await backend.find_by_token(token)
            except CouldNotAsk:
                return False
            return True

        await self.until(could_say, "the backend to know what became of a token")
        return answer

    async def until(self, condition: Callable[[], bool | Awaitable[bool]], what: str) -> None:
        deadline = time.monotonic() + self.patience_s
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            assert time.monotonic() < deadline, f"waited {self.patience_s:g} s for {what}"
            await asyncio.sleep(_LOOK_AGAIN_S)

    def submitter(self, request: AllocationRequest, begin: Path) -> subprocess.Popen[str]:
        """Another process that opens the backend, waits for the file `begin`, submits, and prints the answer's kind."""
        parcel = request.attempt_dir / f"parcel-{uuid.uuid4().hex}"
        parcel.write_bytes(pickle.dumps((self, request, begin)))
        code = (
            "import sys; from openai4s_provisioner.testing import backend_lab; backend_lab.submit_parcel(sys.argv[1])"
        )
        return subprocess.Popen([sys.executable, "-c", code, str(parcel)], stdout=subprocess.PIPE, text=True)

    def end_everything(self) -> None:
        """SIGKILL every process that any request of this lab made and that still lives."""
        for attempt in self.exchange_dir.glob("attempt-*"):
            for pid, started in _shown(attempt):
                if _lives(pid, started):
                    os.kill(pid, signal.SIGKILL)


def handle_of(answer: SubmitResult) -> ExternalHandle:
    assert isinstance(answer, Created | Existing), answer
    return answer.handle


def submit_parcel(path: str) -> None:
    """The body of `BackendLab.submitter`'s process."""
    lab, request, begin = pickle.loads(Path(path).read_bytes())  # noqa: S301 - written by our own test
    backend = lab.open_backend()
    (request.attempt_dir / f"ready-{os.getpid()}").touch()
    while not begin.exists():
        time.sleep(0.001)
    print(type(asyncio.run(backend.submit(request))).__name__, flush=True)


def _shown(attempt: Path) -> list[tuple[int, str]]:
    return [(int(path.name.removeprefix("pid-")), path.read_text()) for path in attempt.glob("pid-*")]


def _lives(pid: int, started: str) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return fields[0] not in "ZX" and fields[19] == started
