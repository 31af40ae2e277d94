"""Tells running workers where this server is now: one small file beside each attempt, written anew when it changes.

A machine's addresses change, and a server that is started again has another socket. A worker that lost its server
reads the file before it dials again. What cannot be written is logged and tried again; it ends nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from .config import SiteConfig
from .daemons import Daemon
from .errors import Refused
from .ports import AllocationBackend
from .private_folder import replace_private
from .store import Situation, Store, StoreThread
from .ways_in import ADDRESS_RECORD, WaysIn, address_record

_log = logging.getLogger(__name__)
LOOK_EVERY_S = 10.0  # well below the time that a worker looks for its server


class AddressKeeper:
    def __init__(
        self,
        store: StoreThread,
        daemon: Daemon,
        config: SiteConfig,
        backends: Mapping[str, AllocationBackend],
        attempt_dir: Callable[[str], Path],
        ways_in: Callable[[], WaysIn],
    ) -> None:
        self._store = store
        self._daemon = daemon
        self._config = config
        self._backends = backends
        self._attempt_dir = attempt_dir
        self._ways_in = ways_in
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """On the control thread's loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def refresh(self) -> None:
        """Look once, and write what has changed."""
        if not self._store.exists or not self._daemon.is_registered:
            return
        situations = await self._store.run(Store.situations, self._daemon.daemon_id, None)
        await asyncio.to_thread(self._write_all, situations, self._ways_in())

    async def _run(self) -> None:
        while True:
            try:
                await self.refresh()
            except Exception:
                _log.exception("the workers could not be told where this server is")
            await asyncio.sleep(LOOK_EVERY_S)

    def _write_all(self, situations: list[Situation], ways_in: WaysIn) -> None:
        for each in situations:
            profile = self._config.profiles.get(each.workload.profile)
            folder = self._attempt_dir(each.allocation.allocation_id)
            if profile is None or each.allocation.phase.is_terminal or not folder.is_dir():
                continue
            try:
                addresses = ways_in.for_workers(profile, self._backends.get(each.allocation.backend))
                _write(folder / ADDRESS_RECORD, address_record(addresses, ways_in.certificate_sha256).encode())
            except Refused as refusal:  # no address that would lead here: the former ones stay
                _log.warning("%s", refusal)
            except OSError as error:
                _log.warning("%s cannot be written: %s", folder / ADDRESS_RECORD, error.strerror)


def _write(path: Path, content: bytes) -> None:
    if not path.is_file() or path.read_bytes() != content:
        replace_private(path, content)
