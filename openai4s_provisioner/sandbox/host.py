"""The few questions the sandbox asks the host's file system, behind one small class so that a test can answer them.

It also knows when one folder is mounted at two places: a mask that hides only one of its names hides nothing.
"""

from __future__ import annotations

import os
import stat


def is_within(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or lies in it. Both absolute and normal."""
    return folder == "/" or path == folder or path.startswith(folder + "/")


def rebase(path: str, old: str, new: str) -> str:
    """`path`, which lies within `old`, as seen from `new`."""
    rest = os.path.relpath(path, old)
    return new if rest == "." else os.path.join(new, rest)


class Host:
    """The machine this runs on."""

    mountinfo = "/proc/self/mountinfo"

    def __init__(self) -> None:
        self._mounts: list[tuple[str, str, str]] | None = None

    def kind(self, path: str) -> str:
        """ "folder", "file" (whatever is not a folder) or "" when there is nothing, symlinks followed."""
        try:
            return "folder" if stat.S_ISDIR(os.stat(path).st_mode) else "file"
        except OSError:
            return ""

    def real(self, path: str) -> str:
        return os.path.realpath(path)

    def link_target(self, path: str) -> str:
        """What the symlink `path` says, or "" when it is none."""
        try:
            return os.readlink(path)
        except OSError:
            return ""

    def same(self, one: str, other: str) -> bool:
        try:
            return os.path.samestat(os.stat(one), os.stat(other))
        except OSError:
            return False

    def first_link(self, path: str) -> str:
        """The first component of `path` that is a symlink, as a path; "" when there is none."""
        walked = ""
        for name in path.split("/")[1:]:
            walked += "/" + name
            if self.link_target(walked):
                return walked
        return ""

    def names(self, real: str) -> list[str]:
        """Every place where the object at `real` is reached: itself, and through other mounts of its file system."""
        found = [real]
        home = max((m for m in self._mount_table() if is_within(real, m[2])), key=lambda m: len(m[2]), default=None)
        if home is None:
            return found
        inside = rebase(real, home[2], home[1])
        for device, root, place in self._mount_table():
            if device == home[0] and is_within(inside, root):
                other = rebase(inside, root, place)
                if other not in found and self.same(other, real):
                    found.append(other)
        return found

    def _mount_table(self) -> list[tuple[str, str, str]]:
        """(device, folder of that device, where it is mounted), in the order of mounting."""
        if self._mounts is None:
            try:
                with open(self.mountinfo, encoding="utf-8", errors="surrogateescape") as lines:
                    self._mounts = [_mount(line) for line in lines]
            except OSError:
                self._mounts = []
        return self._mounts


def mount_points(mountinfo: str) -> set[str]:
    """Every place where something is mounted. Raises OSError."""
    with open(mountinfo, encoding="utf-8", errors="surrogateescape") as lines:
        return {_mount(line)[2] for line in lines}


def _mount(line: str) -> tuple[str, str, str]:
    fields = line.split(" ")
    return fields[2], _plain(fields[3]), _plain(fields[4])


def _plain(field: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field
