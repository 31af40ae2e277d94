"""The local backend behind a queue: an allocation waits until a file says that there is room.

Lives in a server's process like a stranger's backend: found by the entry point that `conftest.py` writes down.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from openai4s_backend_local import create_backend as create_local
from openai4s_provisioner.orchestration.errors import Refused
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

NAME = "queue"
WAITING = "waiting for a machine"
EXPECTED_IN_S = 600


class LocalBackendWithAQueue:
    name = NAME
    runs_here = True

    def __init__(self, local: Any, room: Path, submissions: Path) -> None:
        self._local = local
        self._room = room
        self._never = room.with_name("never")  # exists: what is queued can never run, and why
        self._submissions = submissions
        self._queued: dict[str, AllocationRequest] = {}
        self._left: set[str] = set()
        self._began: dict[str, float] = {}  # of those that run
        self._ends: dict[str, float] = {}
        self._expected_at = time.time() + EXPECTED_IN_S

    def check_profile(self, profile: ResourceProfile) -> None:
        self._local.check_profile(profile)

    def check_task(self, profile: ResourceProfile) -> None:
        self._local.check_task(profile)

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        handle = ExternalHandle(NAME, request.token)
        if request.token in self._queued:
            return Existing(handle)
        profile = request.profile
        with self._submissions.open("a") as file:
            file.write(f"{request.token} cpus={profile.cpus} memory_mb={profile.memory_mb} gpus={profile.gpus} ")
            file.write(f"walltime_s={profile.walltime_s}\n")
        self._queued[request.token] = request
        return Created(handle)

    async def observe(self, handles: Sequence[ExternalHandle]) -> Mapping[ExternalHandle, Observation]:
        seen = {}
        for handle in handles:
            request = self._queued.get(handle.value)
            if handle.value in self._left:
                seen[handle] = Observation(Observed.CANCELLED)
            elif request is not None and self._never.exists():
                told = self._never.read_text()
                seen[handle] = Observation(
                    Observed.FAILED, Reason.UNSCHEDULABLE, backend_detail="(never)", explanation=told
                )
            elif request is not None and not self._room.exists():
                seen[handle] = Observation(
                    Observed.PENDING,
                    waiting=WAITING,
                    backend_detail="(no room)",
                    estimated_start=self._expected_at,
                    position=1,
                )
            else:
                if request is not None:
                    await self._local.submit(self._queued.pop(handle.value))
                    self._began[handle.value] = time.time()
                    self._ends[handle.value] = self._began[handle.value] + request.profile.walltime_s
                local = ExternalHandle("local", handle.value)
                found = (await self._local.observe([local]))[local]
                seen[handle] = replace(found, ends_at=self._ends.get(handle.value))
        return seen

    def can_extend(self, profile: ResourceProfile) -> bool:
        return profile.max_walltime_s > 0

    async def extend(self, handle: ExternalHandle, profile: ResourceProfile, seconds: int) -> float:
        later = self._ends[handle.value] + seconds
        if later > self._began[handle.value] + profile.max_walltime_s:
            raise Refused(
                Reason.POLICY_REJECTED, f"This site lets nobody run for longer than {profile.max_walltime_s} s."
            )
        self._ends[handle.value] = later
        return later

    async def cancel(self, handle: ExternalHandle) -> None:
        if self._queued.pop(handle.value, None) is not None:
            self._left.add(handle.value)
        elif handle.value not in self._left:
            await self._local.cancel(ExternalHandle("local", handle.value))

    async def find_by_token(self, token: str) -> ExternalHandle | None:
        if token in self._queued or token in self._left:
            return ExternalHandle(NAME, token)
        found = await self._local.find_by_token(token)
        return None if found is None else ExternalHandle(NAME, token)

    async def diagnostics(self, handle: ExternalHandle) -> Diagnostics:
        diagnostics: Diagnostics = await self._local.diagnostics(ExternalHandle("local", handle.value))
        return diagnostics

    async def acknowledge_terminal(self, handle: ExternalHandle) -> None:
        await self._local.acknowledge_terminal(ExternalHandle("local", handle.value))

    async def isolates_session_credentials(
        self, profile: ResourceProfile, private_network: bool = False
    ) -> IsolationVerdict:
        """Only once the file `hold` is gone, and not at all where `refuse` is."""
        while (self._room.parent / "hold").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        if (self._room.parent / "refuse").exists():
            return IsolationVerdict(False, "This place has an open door. Ask its administrator to close it.")
        verdict: IsolationVerdict = await self._local.isolates_session_credentials(profile, private_network)
        return verdict

    async def close(self) -> None:
        await self._local.close()
        await asyncio.sleep(0)


def create_backend(*, state_dir: Path, exchange_dir: Path, options: Mapping[str, Any]) -> LocalBackendWithAQueue:
    folder = Path(options["folder"])
    local = create_local(state_dir=state_dir, exchange_dir=exchange_dir, options={})
    return LocalBackendWithAQueue(local, folder / "room", folder / "submissions")
