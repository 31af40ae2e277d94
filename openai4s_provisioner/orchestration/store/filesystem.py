"""Whether a folder lies on a local file system, read from the kernel's mount table.

SQLite's WAL keeps an index in memory shared between processes, which only works on one machine; on a network file
system it silently corrupts. Whatever is not known to be local counts as remote.
"""

from __future__ import annotations

import os
from pathlib import Path

_MOUNT_TABLE = Path("/proc/self/mountinfo")
_LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "bcachefs", "nilfs2", "tmpfs", "ramfs", "overlay"}
)


def is_local_folder(folder: Path) -> bool:
    try:
        table = _MOUNT_TABLE.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return False
    return file_system_of(os.path.realpath(folder), table) in _LOCAL


def file_system_of(path: str, mount_table: str) -> str:
    """The file system type of the deepest mount that holds `path`; of two on one point the later one counts."""
    found, depth = "", -1
    for line in mount_table.splitlines():
        left, separator, right = line.partition(" - ")
        words, kind = left.split(), right.split()
        if not separator or len(words) < 5 or not kind:
            continue
        point = _unescaped(words[4])
        if _holds(point, path) and len(point) >= depth:
            found, depth = kind[0], len(point)
    return found


def _holds(point: str, path: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
