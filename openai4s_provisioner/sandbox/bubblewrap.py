"""The sandbox by bubblewrap: an unprivileged mount, pid, ipc, uts and cgroup namespace around one argv.

Nothing secret is ever put on its command line: the environment of what runs inside arrives by other ways. Its own end
is the end of everything inside (`--die-with-parent` on both of its processes, and a pid namespace between them).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from .covers import CoveredPlace
from .errors import SandboxUnavailable
from .host import Host
from .layout import Kind, Mount, covered_places, plan
from .spec import NETWORK_PRIVATE, SandboxSpec

INSTALL_REMEDY = (
    "install bubblewrap (Debian, Ubuntu: apt install bubblewrap; Fedora, RHEL: dnf install bubblewrap), "
    "or ask your administrator to do so"
)

_NAMESPACES = (
    "--unshare-user",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--cap-drop",
    "ALL",
    "--die-with-parent",
    "--new-session",
)


def find_bubblewrap(path: str | None = None) -> str:
    """The program `path`, or the first `bwrap` on PATH. Raises SandboxUnavailable with the remedy."""
    found = shutil.which(path or "bwrap")
    if found:
        return os.path.abspath(found)
    missing = f"the program {path}" if path else "the program bwrap"
    raise SandboxUnavailable(
        f"{missing}, which isolates sessions from each other, is not on this machine: {INSTALL_REMEDY}"
    )


class Bubblewrap:
    """`Sandbox` by the bubblewrap program at `path`."""

    def __init__(self, path: str | None = None, host: Host | None = None) -> None:
        self.path = find_bubblewrap(path)
        self._host = host

    def wrap(self, spec: SandboxSpec, argv: Sequence[str], *, keep_fds: Sequence[int] = ()) -> list[str]:
        """See `Sandbox.wrap`. Bubblewrap hands inherited descriptors on by itself."""
        mounts = plan(spec, self._host or Host())
        options = list(_NAMESPACES)
        if spec.network == NETWORK_PRIVATE:
            options.append("--unshare-net")
        for mount in mounts:
            options += _option(mount)
        for place in _closed(mounts):
            options += ["--remount-ro", place]
        if spec.env_marker:
            name, _, value = spec.env_marker.partition("=")
            options += ["--setenv", name, value]
        return [self.path, *options, "--", *argv]

    def covered(self, spec: SandboxSpec) -> list[CoveredPlace]:
        """See `Sandbox.covered`."""
        return covered_places(spec, self._host or Host())


def _option(mount: Mount) -> list[str]:
    simple = {
        Kind.READ_ONLY: "--ro-bind",
        Kind.READ_WRITE: "--bind",
        Kind.DEVICE: "--dev-bind-try",
        Kind.SYMLINK: "--symlink",
    }
    if mount.kind in simple:
        return [simple[mount.kind], mount.source, mount.dest]
    if mount.kind is Kind.PROC:
        return ["--proc", mount.dest]
    if mount.kind is Kind.DEV:
        return ["--dev", mount.dest]
    if mount.kind is Kind.HIDDEN_FILE:
        return ["--ro-bind", "/dev/null", mount.dest]
    mode = "0700" if mount.kind is Kind.HIDDEN_FOLDER else "1777"
    return ["--perms", mode, "--tmpfs", mount.dest]


def _closed(mounts: Sequence[Mount]) -> list[str]:
    """What would swallow a file in memory, and lose it, is closed at the end: hidden folders, and the root itself."""
    return [*(mount.dest for mount in mounts if mount.kind is Kind.HIDDEN_FOLDER), "/"]
