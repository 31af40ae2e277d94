"""What a mask or a protection covers, while a session runs: noticed when it comes off, and put back.

The system takes a mount away when another program, outside, removes or replaces the file or folder that it lies on:
an editor that renames a new `.netrc` over the old one is enough. Such a place is covered again by entering the
sandbox's own namespaces, which the account that made them may do. It refuses to follow a link: a place that became one
cannot be covered safely, so the caller has to end the session.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import fcntl
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .host import mount_points

_NS_GET_USERNS = 0xB701
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND = 1, 2, 4, 8, 32, 4096
_KEPT_FLAGS = {  # of a mount that is made read-only; the system forbids to drop them. statvfs flag: mount flag
    os.ST_NOSUID: _NOSUID,
    os.ST_NODEV: _NODEV,
    os.ST_NOEXEC: _NOEXEC,
    os.ST_NOATIME: 1024,
    os.ST_NODIRATIME: 2048,
    os.ST_RELATIME: 1 << 21,
}


class Cover(enum.Enum):
    HIDDEN = "hidden"
    READ_ONLY = "read-only"


@dataclass(frozen=True)
class CoveredPlace:
    """`place`: as seen inside. `source`: the same object, as the machine outside calls it."""

    place: str
    source: str
    cover: Cover


def uncovered(init: int, places: Iterable[CoveredPlace], proc: str = "/proc") -> list[CoveredPlace]:
    """Those that exist inside the sandbox whose first process is `init`, and lie bare. Empty when it has ended."""
    try:
        points = mount_points(f"{proc}/{init}/mountinfo")
        return [each for each in places if each.place not in points and _exists(f"{proc}/{init}/root", each.place)]
    except OSError:
        return []


def _exists(root: str, place: str) -> bool:
    try:
        os.lstat(root + place)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def cover_again(pids: Sequence[int], places: Sequence[CoveredPlace]) -> bool:
    """Cover `places` in every mount namespace that one of `pids` is in. Whether all of it succeeded.

    Each is entered by a forked child, because a process cannot come back from a namespace.
    """
    done = True
    for namespace in _namespaces(pids):
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if _cover_in(namespace, places) else 1)
            finally:
                os._exit(1)
        os.close(namespace)
        done = os.waitpid(child, 0)[1] == 0 and done
    return done


def _namespaces(pids: Iterable[int]) -> Iterator[int]:
    """A descriptor of each mount namespace, once; the receiver closes it."""
    seen = set()
    for pid in pids:
        try:
            descriptor = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue  # that process has ended
        identity = os.fstat(descriptor).st_ino
        if identity in seen:
            os.close(descriptor)
        else:
            seen.add(identity)
            yield descriptor


def _cover_in(namespace: int, places: Iterable[CoveredPlace]) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
    if libc.setns(owner, 0) or libc.setns(namespace, 0):
        return False
    failed = [each for each in places if not _cover(libc, each)]  # every one is tried
    return not failed


def _cover(libc: ctypes.CDLL, each: CoveredPlace) -> bool:
    place = os.fsencode(each.place)
    try:
        mode = os.lstat(place).st_mode
    except FileNotFoundError:
        return True
    if stat.S_ISLNK(mode):
        return False
    if each.cover is Cover.HIDDEN and stat.S_ISDIR(mode):
        return not libc.mount(b"tmpfs", place, b"tmpfs", _RDONLY | _NOSUID | _NODEV, b"mode=0700")
    source = b"/dev/null" if each.cover is Cover.HIDDEN else place
    if libc.mount(source, place, None, _BIND, None):
        return False
    found = os.statvfs(place).f_flag
    kept = sum(flag for seen, flag in _KEPT_FLAGS.items() if found & seen)
    return not libc.mount(None, place, None, _REMOUNT | _BIND | _RDONLY | kept, None)


class ReplacementNotice:
    """Tells, by a descriptor that becomes readable, that something in one of some folders was made, moved or removed.

    Only a hint that comes early: a shared file system tells nothing of what other machines do. `fd` is -1 where the
    system gives none.
    """

    _EVENTS = 0x80 | 0x100 | 0x200 | 0x40  # moved to, created, deleted, moved from

    def __init__(self, folders: Iterable[str]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC) if sys.platform == "linux" else -1
        for folder in sorted(set(folders)) if self.fd >= 0 else ():
            libc.inotify_add_watch(self.fd, os.fsencode(folder), self._EVENTS)

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self.fd, 64 * 1024):
                continue

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
