"""What this process drives, and what another one took over while this one was away.

A process that was suspended, or could not write, for so long that others may take it for dead acts no more before it
has beaten again and read again what is still its own. What was taken it lets go: the connections to its workers are
closed, and whoever follows it here is told until it is over. It ends nothing; that is for the new owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from .daemons import Daemon
from .store import Store, StoreThread

_log = logging.getLogger(__name__)


class Ownership:
    def __init__(
        self, store: StoreThread, daemon: Daemon, let_go: Callable[[str, str], None], announce: Callable[[str], None]
    ) -> None:
        """`let_go(workload_id, allocation_id)`: forget what is only in this process's memory."""
        self._store = store
        self._daemon = daemon
        self._let_go = let_go
        self._announce = announce
        self._driven: set[str] = set()
        self._taken: set[str] = set()
        self._renewing = asyncio.Lock()

    def now_drives(self, workload_ids: Iterable[str]) -> None:
        """These, and no others, are unfinished and ours."""
        self._driven = set(workload_ids)

    async def renew(self) -> bool:
        """Before anything is done: True after a pause in which others may have acted; what is ours was read again."""
        if self._daemon.is_current or not self._daemon.is_registered:
            return False
        async with self._renewing:
            if self._daemon.is_current:
                return False
            await self._daemon.beat()
            _log.warning("this process was away for so long that another one may have taken its sessions over")
            for workload_id in sorted(self._driven):
                if await self._store.run(Store.driver_of, workload_id) != self._daemon.daemon_id:
                    await self._was_taken(workload_id)
            return True

    async def keep(self) -> None:
        """Now and then: beat, and look at what was taken until it is over; nobody else announces here what becomes of
        it."""
        if not await self.renew():
            await self._daemon.beat()
        for workload_id in sorted(self._taken):
            workload = await self._store.run(Store.workload, workload_id)
            if workload is None or workload.phase.is_terminal:
                self._taken.discard(workload_id)
            self._announce(workload_id)

    async def _was_taken(self, workload_id: str) -> None:
        self._driven.discard(workload_id)
        self._taken.add(workload_id)
        now = await self._store.run(Store.situation, workload_id)
        if now is not None:
            _log.warning("session %s is driven by another process now", workload_id[:8])
            self._let_go(workload_id, now.allocation.allocation_id)
        self._announce(workload_id)
