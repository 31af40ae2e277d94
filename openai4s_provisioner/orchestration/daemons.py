"""Which process drives which workload, when several of one person share a state folder.

Alive means: holds the lock on its own file, or has beaten lately. A lock alone can lie between hosts, a beat alone is
slow on one host, so both are asked. What a dead process drove is adopted by compare-and-set. Registering writes, so
it waits for the first session.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from .errors import StateError
from .models import Kind
from .private_folder import prepare_folder
from .steady_clock import steady_time
from .store import DaemonRow, StoreThread, drivers, tasks

BEAT_EVERY_S = 10.0
SILENCE_S = 60.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def is_dead(row: DaemonRow, lock_is_free: bool, boot_id: str, now: float) -> bool:
    """Whether a process may be taken for dead. On one boot a free lock is proof; between hosts it takes silence too."""
    if not lock_is_free:
        return False
    return row.retired_at is not None or row.boot_id == boot_id or now - row.beat_at >= SILENCE_S


class Daemon:
    """This process's place among those that share the state folder."""

    def __init__(
        self,
        store: StoreThread,
        clock: Callable[[], float] = steady_time,
        boot_id: str | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`wall`: what beats are stamped with. Unlike `clock` it goes on while this machine sleeps: to the others, a
        process that woke up late must look alive, and to itself it must look as if it was away.

        `has_work`: set while this process drives something, as the control loop last saw it. What there is to look
        after beside that loop waits for it, so that nothing reads the state while there is no session.
        """
        self._wall = wall
        self._beaten_at = 0.0
        self.daemon_id = uuid.uuid4().hex
        self._store = store
        self._clock = clock
        self._boot_id = boot_id or _read_boot_id()
        self._folder = store.state_dir / "daemons"
        self._lock: int | None = None
        self._once = asyncio.Lock()
        self.has_work = asyncio.Event()

    @property
    def report_path(self) -> Path:
        """Where this process tells people how it fares; whoever removes its lock removes that too."""
        return report_path(self._store.state_dir, self.daemon_id)

    @property
    def is_registered(self) -> bool:
        return self._lock is not None

    @property
    def is_current(self) -> bool:
        """Whether the last beat is so young that nobody can have taken this process for dead since."""
        return self.is_registered and 0 <= self._wall() - self._beaten_at < SILENCE_S - BEAT_EVERY_S

    async def register(self) -> None:
        """Take the lock, then write the row: a row without a lock is always a dead process. Idempotent."""
        async with self._once:
            if self._lock is not None:
                return
            descriptor = await asyncio.to_thread(self._take_own_lock)
            beaten_at = self._wall()
            try:
                await self._store.run(
                    drivers.register,
                    self.daemon_id,
                    socket.gethostname(),
                    self._boot_id,
                    os.getpid(),
                    beaten_at,
                )
            except BaseException:
                os.close(descriptor)
                raise
            self._lock, self._beaten_at = descriptor, beaten_at

    async def beat(self) -> None:
        """From when it is written on, nobody adopts what was not adopted before."""
        if self.is_registered:
            beaten_at = self._wall()
            await self._store.run(drivers.beat, self.daemon_id, beaten_at)
            self._beaten_at = beaten_at

    async def adopt(self, kind: Kind | None = None) -> list[str]:
        """Take over what dead processes left, or only that of one kind. The ids of the workloads that are ours now."""
        adopted: list[str] = []
        for row in await self._store.run(drivers.other_drivers, self.daemon_id):
            probe = _Probe(self._folder / row.daemon_id)
            try:
                if not is_dead(row, await asyncio.to_thread(probe.take), self._boot_id, self._clock()):
                    continue
                await self.register()
                adopted += await self._store.run(drivers.adopt, row, self.daemon_id, self._clock(), kind)
                await asyncio.to_thread(self._remove_files, row.daemon_id)
            finally:
                probe.let_go()
        return adopted

    async def retire(self) -> None:
        """Say goodbye: whatever is left may be adopted at once. Idempotent."""
        if self._lock is None:
            return
        descriptor, self._lock = self._lock, None
        try:
            await self._store.run(drivers.retire, self.daemon_id, self._clock())
        finally:
            await asyncio.to_thread(self._remove_files, self.daemon_id)
            os.close(descriptor)

    def _remove_files(self, daemon_id: str) -> None:
        (self._folder / daemon_id).unlink(missing_ok=True)
        report_path(self._store.state_dir, daemon_id).unlink(missing_ok=True)

    def drop_lock(self) -> None:
        """Let go without a goodbye, as the system does for a process that is killed."""
        if self._lock is not None:
            descriptor, self._lock = self._lock, None
            os.close(descriptor)

    def _take_own_lock(self) -> int:
        try:
            prepare_folder(self._folder.parent)
            prepare_folder(self._folder)
            descriptor = os.open(self._folder / self.daemon_id, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StateError(
                f"{self._folder}: the state folder cannot be used ({error.strerror}). "
                "Make it a folder that you can write, or name another one."
            ) from error
        return descriptor


async def is_driven(store: StoreThread, workload_id: str, now: float) -> bool:
    """Whether a living process drives this workload."""
    row = await store.run(tasks.driver, workload_id)
    if row is None:
        return False
    return not await asyncio.to_thread(seems_dead, store.state_dir, row, now)


def report_path(state_dir: Path, daemon_id: str) -> Path:
    return state_dir / "daemons" / f"{daemon_id}.json"


def seems_dead(state_dir: Path, row: DaemonRow, now: float) -> bool:
    """Whether this process may take that one for dead. Blocks for a moment."""
    probe = _Probe(state_dir / "daemons" / row.daemon_id)
    try:
        return is_dead(row, probe.take(), _read_boot_id(), now)
    finally:
        probe.let_go()


class _Probe:
    """A look at the lock of another process. What was free is held by us, so that two do not judge at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._guard = threading.Lock()
        self._descriptor: int | None = None
        self._is_over = False

    def take(self) -> bool:
        """Whether nobody holds it. Blocks for a moment, or for as long as the file system hangs."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        with self._guard:
            if self._is_over:  # whoever asked has gone meanwhile
                os.close(descriptor)
                return False
            self._descriptor = descriptor
        return True

    def let_go(self) -> None:
        with self._guard:
            self._is_over = True
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None


def _read_boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return f"unknown-{uuid.uuid4().hex}"  # equal to no other: then only silence counts
