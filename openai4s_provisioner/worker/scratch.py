"""A worker's private folder on its node: kernel sockets, private temp, spools. Short, so that sockets fit below it.

Its name follows from the allocation, so that whoever outlives a killed worker can find and remove it (`scratch_path`).
A lock that dies with its worker marks it as in use; every worker that starts removes what dead ones left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile

_LONGEST_PARENT_BYTES = 40
_LOCK = "lock"


def scratch_path(allocation_id: str, rank: int) -> str:
    digest = hashlib.sha256(f"{allocation_id}/{rank}".encode()).hexdigest()[:16]
    return os.path.join(_parent(), f"{_prefix()}{digest}")


class Scratch:
    def __init__(self, allocation_id: str, rank: int) -> None:
        """Make the folder and take its lock; it appears under its name with the lock already taken."""
        _remove_leftovers()
        self.path = scratch_path(allocation_id, rank)
        making = tempfile.mkdtemp(prefix="o4s-new-", dir=_parent())
        self._lock = os.open(os.path.join(making, _LOCK), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(making, self.path)  # fails when somebody else has put a file or a full folder there

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _parent() -> str:
    preferred = tempfile.gettempdir()
    return preferred if len(os.fsencode(preferred)) <= _LONGEST_PARENT_BYTES else "/tmp"  # noqa: S108


def _prefix() -> str:
    return f"o4s-{os.geteuid()}-"


def _remove_leftovers() -> None:
    parent = _parent()
    for name in os.listdir(parent):
        if name.startswith(_prefix()):
            with contextlib.suppress(OSError):
                _remove_if_dead(os.path.join(parent, name))


def _remove_if_dead(path: str) -> None:
    if os.lstat(path).st_uid != os.geteuid():
        return
    lock = os.open(os.path.join(path, _LOCK), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while its worker lives
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)
