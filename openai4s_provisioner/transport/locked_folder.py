"""A short-lived folder of one process: sockets, private temporary files, spools. Nobody else of the machine can enter.

A lock that dies with its process marks it as in use, so whoever comes later can remove what a killed process left.
It appears under its name with the lock already taken. Standard library only, for the node and the server alike.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time

_LOCK = "lock"
_MAKING = "new-"
_MAKING_S = 600.0  # a folder being made has no lock for an instant, and must not pass for a dead one's


class PrivateFolder:
    def __init__(self, parent: str, name: str) -> None:
        """Make ``<parent>/<prefix><name>``. Raises OSError; a full folder of that name is never taken over."""
        remove_leftovers(parent)
        self.path = private_path(parent, name)
        making = tempfile.mkdtemp(prefix=f"{_prefix()}{_MAKING}", dir=parent)
        self._lock = os.open(os.path.join(making, _LOCK), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(making, self.path)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def private_path(parent: str, name: str) -> str:
    return os.path.join(parent, f"{_prefix()}{name}")


def remove_leftovers(parent: str) -> None:
    """Remove the folders of our account below `parent` whose process has ended."""
    for name in os.listdir(parent):
        if name.startswith(_prefix()):
            with contextlib.suppress(OSError):
                _remove_if_dead(os.path.join(parent, name))


def _prefix() -> str:
    return f"o4s-{os.geteuid()}-"


def _remove_if_dead(path: str) -> None:
    about = os.lstat(path)
    is_being_made = _MAKING in os.path.basename(path) and time.time() - about.st_mtime < _MAKING_S
    if about.st_uid != os.geteuid() or is_being_made:
        return
    lock = os.open(os.path.join(path, _LOCK), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while its process lives
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)
