"""A backend with a queue: so many allocations run at once, in another backend; whatever comes later waits its turn.

For tests that need a session which truly waits, and for ends that a single machine does not have: naming a reason in
the folder `ends` ends what runs, and that reason is reported. The queue lives in this process's memory.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from openai4s_provisioner.orchestration.models import ExternalHandle, ResourceProfile
from openai4s_provisioner.orchestration.ports import (
    AllocationBackend,
    AllocationRequest,
    Created,
    Diagnostics,
    Existing,
    IsolationVerdict,
    Observation,
    Observed,
    SessionIsolationProvider,
    SubmitResult,
    WalltimeExtender,
)
from openai4s_provisioner.orchestration.reasons import Reason

GROUP = "openai4s_provisioner.backends"
NAME = "queue"
_OVER = frozenset({Observed.COMPLETED, Observed.FAILED, Observed.CANCELLED, Observed.GONE})


class BackendWithAQueue:
    name = NAME
    runs_here = True

    def __init__(self, inner: AllocationBackend, places: int, turn_s: float, folder: Path) -> None:
        self._inner = inner
        self._places = places
        self._turn_s = turn_s  # what is told of the time that each of those before it may take
        self._ends = folder / "ends"
        self._waiting: dict[str, AllocationRequest] = {}
        self._running: dict[str, ExternalHandle] = {}
        self._ended: dict[str, Observation] = {}

    def check_profile(self, profile: ResourceProfile) -> None:
        self._inner.check_profile(profile)

    def check_task(self, profile: ResourceProfile) -> None:
        """Every profile can hold a step, as in the backend that runs it."""

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        handle = ExternalHandle(NAME, request.token)
        if request.token in (*self._waiting, *self._running, *self._ended):
            return Existing(handle)
        if len(self._running) >= self._places:
            self._waiting[request.token] = request
            return Created(handle)
        return await self._start(request)

    async def observe(self, handles: Sequence[ExternalHandle]) -> Mapping[ExternalHandle, Observation]:
        await self._look_at_what_runs()
        await self._next_ones()
        return {handle: await self._observation(handle.value) for handle in handles}

    async def cancel(self, handle: ExternalHandle) -> None:
        if self._waiting.pop(handle.value, None) is not None:
            self._ended[handle.value] = Observation(Observed.CANCELLED)
        else:
            await self._inner.cancel(self._inner_handle(handle.value))

    async def find_by_token(self, token: str) -> ExternalHandle | None:
        known = token in self._waiting or await self._inner.find_by_token(token) is not None
        return ExternalHandle(NAME, token) if known else None

    def can_extend(self, profile: ResourceProfile) -> bool:
        return isinstance(self._inner, WalltimeExtender) and self._inner.can_extend(profile)

    async def extend(self, handle: ExternalHandle, profile: ResourceProfile, seconds: int) -> float:
        assert isinstance(self._inner, WalltimeExtender)
        return await self._inner.extend(self._inner_handle(handle.value), profile, seconds)

    async def diagnostics(self, handle: ExternalHandle) -> Diagnostics:
        if handle.value in self._waiting:
            return Diagnostics(backend_detail="it waits in the queue")
        return await self._inner.diagnostics(self._inner_handle(handle.value))

    async def isolates_session_credentials(
        self, profile: ResourceProfile, private_network: bool = False
    ) -> IsolationVerdict:
        assert isinstance(self._inner, SessionIsolationProvider)
        return await self._inner.isolates_session_credentials(profile, private_network)

    async def close(self) -> None:
        await self._inner.close()

    async def _start(self, request: AllocationRequest) -> SubmitResult:
        result = await self._inner.submit(request)
        if isinstance(result, Created | Existing):
            self._running[request.token] = result.handle
            return replace(result, handle=ExternalHandle(NAME, request.token))
        return result

    def _inner_handle(self, token: str) -> ExternalHandle:
        return self._running.get(token, ExternalHandle(self._inner.name, token))

    async def _look_at_what_runs(self) -> None:
        """What is over makes room; what is named in `ends` is ended, and remembered with that reason."""
        named = [Reason(path.name) for path in self._ends.iterdir()] if self._ends.is_dir() else []
        seen = await self._inner.observe(list(self._running.values()))
        for token, handle in list(self._running.items()):
            if named:
                await self._inner.cancel(handle)
                self._ended[token] = Observation(Observed.FAILED, named[0], backend_detail=f"ended by {named[0]}")
            if seen[handle].state in _OVER:
                self._ended.setdefault(token, seen[handle])
                del self._running[token]
        for reason in named:
            (self._ends / reason).unlink()

    async def _next_ones(self) -> None:
        while self._waiting and len(self._running) < self._places:
            token = next(iter(self._waiting))
            result = await self._start(self._waiting.pop(token))
            if not isinstance(result, Created | Existing):
                self._ended[token] = Observation(Observed.FAILED, Reason.BACKEND_REJECTED, backend_detail=str(result))

    async def _observation(self, token: str) -> Observation:
        if token in self._ended:
            return self._ended[token]
        if token in self._waiting:
            position = list(self._waiting).index(token) + 1
            return Observation(
                Observed.PENDING,
                waiting="waiting for resources",
                estimated_start=time.time() + position * self._turn_s,
                position=position,
            )
        handle = self._inner_handle(token)
        return (await self._inner.observe([handle]))[handle]


def create_backend(*, state_dir: Path, exchange_dir: Path, options: Mapping[str, Any]) -> BackendWithAQueue:
    """Over the installed backend that `options` names; `places` of it run at once."""
    [point] = entry_points(group=GROUP, name=options["over"])
    inner = point.load()(state_dir=state_dir, exchange_dir=exchange_dir, options={})
    return BackendWithAQueue(inner, options.get("places", 1), options.get("turn_s", 600), state_dir)


def install(folder: Path) -> None:
    """Make it known to every Python that has `folder` on its path, as an installed wheel would."""
    record = folder / f"openai4s_{NAME}-0.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: openai4s-{NAME}\nVersion: 0\n", encoding="utf-8")
    (record / "entry_points.txt").write_text(f"[{GROUP}]\n{NAME} = {__name__}:create_backend\n", encoding="utf-8")
