"""A backend whose allocations hold several ranks on this machine, each a real worker process, like nodes of a cluster.

For tests of sessions over several ranks: it is found by its entry point like a stranger's, and its options say what
goes wrong. It keeps what it knows in files, so any process over the same folder sees the same allocations.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai4s_provisioner.orchestration.models import ExternalHandle, ResourceProfile
from openai4s_provisioner.orchestration.ports import (
    AllocationRequest,
    Created,
    Diagnostics,
    Existing,
    IsolationVerdict,
    Observation,
    Observed,
    SubmitResult,
)
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.worker.process_tree import Process, is_same, read_process

from .rank_leader import ENDED, WORKERS

NAME = "ranks"
_LEADER, _LAUNCHED = "leader.json", Path(__file__).with_name("rank_leader.py")
_STEP = Path(__file__).with_name("rank_step.py")
_LAUNCH_S = 20.0


@dataclass(frozen=True)
class Faults:
    """What goes wrong: the options of ``[backends.ranks]``."""

    together: bool = True  # as schedulers do: one rank that ends badly ends the others
    absent: int = -1  # this rank never starts
    elsewhere: str = ""  # RANK=OTHER=PLACE: that rank sees the folder OTHER at PLACE


class BackendOfRanks:
    name = NAME
    runs_here = True

    def __init__(self, folder: Path, faults: Faults, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._faults = faults
        self._environment = environment
        self._children: list[subprocess.Popen[bytes]] = []  # to be reaped

    def check_profile(self, profile: ResourceProfile) -> None:
        pass

    def check_task(self, profile: ResourceProfile) -> None:
        pass

    def step_prefix(self, profile: ResourceProfile) -> Sequence[str]:
        return (sys.executable, "-I", str(_STEP), str(profile.nodes))

    async def isolates_session_credentials(
        self, profile: ResourceProfile, private_network: bool = False
    ) -> IsolationVerdict:
        return IsolationVerdict(True)

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        return await asyncio.to_thread(self._submit, request)

    def _submit(self, request: AllocationRequest) -> SubmitResult:
        handle, folder = ExternalHandle(NAME, request.token), self._folder / request.token
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            return Existing(handle)
        faults = self._faults
        options = ["--folder", str(folder), "--ranks", str(request.profile.nodes)]
        options += ["--together"] if faults.together else []
        options += ["--absent", str(faults.absent)] if faults.absent >= 0 else []
        options += ["--elsewhere", faults.elsewhere] if faults.elsewhere else []
        worker = [sys.executable, "-I", *request.program]
        with open(folder / "log", "ab") as log:
            leader = subprocess.Popen(
                [sys.executable, "-I", str(_LAUNCHED), *options, "--", *worker],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self._environment},
            )
        self._children.append(leader)
        deadline = time.monotonic() + _LAUNCH_S
        while not (folder / WORKERS).exists() and leader.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        seen = read_process(leader.pid)
        assert seen is not None
        (folder / _LEADER).write_text(json.dumps(seen))
        return Created(handle)

    async def observe(self, handles: Sequence[ExternalHandle]) -> Mapping[ExternalHandle, Observation]:
        for child in self._children:
            child.poll()
        return {handle: self._observed(self._folder / handle.value) for handle in handles}

    async def cancel(self, handle: ExternalHandle) -> None:
        leader = _leader_of(self._folder / handle.value)
        if leader is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(leader.pid, signal.SIGTERM)

    async def find_by_token(self, token: str) -> ExternalHandle | None:
        return ExternalHandle(NAME, token) if (self._folder / token).exists() else None

    async def diagnostics(self, handle: ExternalHandle) -> Diagnostics:
        log = self._folder / handle.value / "log"
        return Diagnostics(log.read_text(errors="replace")[-2000:] if log.exists() else "", (log,))

    async def close(self) -> None:
        pass

    def _observed(self, folder: Path) -> Observation:
        if not folder.exists():
            return Observation(Observed.GONE)
        alive = _leader_of(folder) is not None
        if (folder / ENDED).exists():
            return _ended(json.loads((folder / ENDED).read_text()))
        if not alive:
            return Observation(Observed.FAILED, Reason.NODE_FAILED, backend_detail="the leader was killed")
        return Observation(Observed.RUNNING, hosts=(platform.node(),))


def _ended(record: Mapping[str, Any]) -> Observation:
    told = ", ".join(f"rank {rank}: {code}" for rank, code in record["codes"].items())
    if record["asked"] == "cancelled":
        return Observation(Observed.CANCELLED, backend_detail=told)
    if any(record["codes"].values()):
        return Observation(Observed.FAILED, Reason.WORKER_LOST, backend_detail=told)
    return Observation(Observed.COMPLETED, backend_detail=told, exit_code=0)


def _leader_of(folder: Path) -> Process | None:
    """While it lives."""
    try:
        known = Process(*json.loads((folder / _LEADER).read_text()))
    except FileNotFoundError:
        return None
    now = read_process(known.pid)
    return known if is_same(now, known) else None


def pids_of(state_dir: Path) -> dict[int, int]:
    """Rank to process id, of the newest allocation: for a test that ends one."""
    newest = max((state_dir / NAME).glob(f"*/{WORKERS}"), key=lambda path: path.stat().st_mtime)
    return {int(rank): pid for rank, pid in json.loads(newest.read_text()).items()}


def create_backend(*, state_dir: Path, exchange_dir: Path, options: Mapping[str, Any]) -> BackendOfRanks:
    """The entry point."""
    rest = dict(options)
    environment = rest.pop("environment", {})
    return BackendOfRanks(state_dir / NAME, Faults(**rest), environment)
