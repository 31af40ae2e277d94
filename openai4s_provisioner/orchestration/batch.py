"""BATCH workloads as the rest of the program sees them: submit, look, stop, wait.

Runs on one event loop, in a process that may be short-lived: what it starts goes on without it, and the next process
that opens the state drives it on. It states wishes and reads facts; the reconciler acts. It holds no session.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
import uuid
from collections.abc import Callable
from typing import Protocol

from .admission import Admission, AdmissionRequest
from .config import SiteConfig
from .daemons import Daemon
from .errors import Refused, SessionEnded
from .launches import LaunchBook
from .models import BatchSpec, Kind, Phase
from .reasons import Reason
from .store import NewBatch, Situation, Store, StoreThread, batches, tasks
from .store.batches import Listed

_log = logging.getLogger(__name__)
_LOOK_AGAIN_S = 0.25
_ADOPT_AGAIN_S = 5.0
_SETTLE_S = 10.0


class Driver(Protocol):
    """The reconciler, as this module needs it."""

    def poke(self, workload_id: str) -> None: ...

    async def adopt(self, kind: Kind | None = None) -> None: ...

    async def turn(self) -> None: ...


class BatchService:
    def __init__(
        self,
        *,
        config: SiteConfig,
        store: StoreThread,
        admission: Admission,
        daemon: Daemon,
        launches: LaunchBook,
        driver: Driver,
        has_record: Callable[[str], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`has_record`: whether an allocation's worker wrote down how its command ended."""
        self._config = config
        self._store = store
        self._admission = admission
        self._daemon = daemon
        self._launches = launches
        self._driver = driver
        self._has_record = has_record
        self._clock = clock

    async def submit(self, request: AdmissionRequest) -> str:
        """The id, once the backend has it. Raises Refused, or SessionEnded when the backend did not take it."""
        assert isinstance(request.spec, BatchSpec)
        admitted = await self._admission.admit(request)
        await self._daemon.register()
        new = NewBatch(
            workload_id=uuid.uuid4().hex,
            allocation_id=uuid.uuid4().hex,
            token=secrets.token_hex(24),
            owner=request.owner,
            profile=admitted.profile.name,
            backend=admitted.profile.backend,
            spec=request.spec,
            max_batches=self._config.limits.max_batches,
        )
        self._launches[new.workload_id] = request.launch
        try:
            await self._store.run(batches.open_batch, new, self._daemon.daemon_id, self._clock())
        except Exception as error:
            self._launches.pop(new.workload_id)
            if isinstance(error, Refused):
                await self._admission.record(request.owner, error)
            raise
        self._driver.poke(new.workload_id)
        entry = await self._until(new.workload_id, lambda now: now.allocation.phase is not Phase.SUBMITTING)
        workload = entry.now.workload
        if entry.now.allocation.handle is None and workload.phase.is_terminal:
            reason = workload.reason or Reason.BACKEND_REJECTED
            raise SessionEnded(reason, workload.reason_detail or reason.sentence)
        return new.workload_id

    async def settle(self) -> None:
        """Take over commands whose driver is gone, and look at everything of ours once; bounded."""
        if not self._store.exists:
            return
        try:
            async with asyncio.timeout(_SETTLE_S):
                await self._driver.adopt(Kind.BATCH)
                await self._driver.turn()
        except TimeoutError:
            _log.warning("what is known could not be brought up to date within %g s", _SETTLE_S)

    async def listing(self, since: float, everything: bool, most: int) -> list[Listed]:
        if not self._store.exists:
            return []
        return await self._store.run(batches.listing, since, everything, most)

    async def find(self, beginning: str, owner: str) -> Listed:
        """The one workload of `owner` whose id begins so, or that holds the kernel which is named. Raises Refused."""
        found: list[str] = []
        if len(beginning) >= tasks.SHORTEST_ID and self._store.exists:
            found = await self._store.run(batches.named, beginning)
            found = found or sorted({one.workload_id for one in await self._store.run(tasks.kernels_named, beginning)})
        if len(found) > 1:
            raise Refused(Reason.INVALID_SPEC, f"Several ids begin with {beginning!r}. Give more of it.")
        entry = await self._store.run(batches.listed, found[0]) if found else None
        if entry is None:
            raise Refused(
                Reason.INVALID_SPEC,
                f"There is no workload {beginning!r}. 'jupyter openai4s ls --all' lists those there are; "
                f"the first {tasks.SHORTEST_ID} characters of an id are enough.",
            )
        if entry.now.workload.owner != owner:
            raise Refused(Reason.AUTHORIZATION_DENIED, f"Workload {beginning!r} belongs to {entry.now.workload.owner}.")
        return entry

    async def look(self, workload_id: str) -> Listed:
        entry = await self._store.run(batches.listed, workload_id)
        assert entry is not None
        return entry

    async def stop(self, workload_id: str, actor: str) -> None:
        """Wish it stopped, durably. Whoever drives it carries that out."""
        args = (workload_id, Reason.USER_CANCELLED, "", actor, self._clock())
        await self._store.run(Store.request_stop, *args)
        await self._driver.adopt(Kind.BATCH)
        self._driver.poke(workload_id)

    async def wait(self, workload_id: str) -> Listed:
        """Drive it, or watch whoever does, until it is over."""
        return await self._until(workload_id, lambda now: now.workload.phase.is_terminal)

    async def _until(self, workload_id: str, condition: Callable[[Situation], bool]) -> Listed:
        loop = asyncio.get_running_loop()
        next_adoption = loop.time() + _ADOPT_AGAIN_S
        while True:
            entry = await self.look(workload_id)
            if condition(entry.now) or entry.now.workload.phase.is_terminal:
                return entry
            if loop.time() >= next_adoption:
                next_adoption = loop.time() + _ADOPT_AGAIN_S
                await self._driver.adopt(Kind.BATCH)
            if await asyncio.to_thread(self._has_record, entry.now.allocation.allocation_id):
                self._driver.poke(workload_id)
            await asyncio.sleep(_LOOK_AGAIN_S)
