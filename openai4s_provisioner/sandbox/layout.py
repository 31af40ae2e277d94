"""Which mounts make the inside of a sandbox: computed from a spec and a look at the host, performed elsewhere.

Everything is ordered by depth, so that what is named more precisely wins. Masks and protected files are objects of the
host, not places: each is covered wherever a bound folder would show it, under every name it has.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable
from dataclasses import dataclass

from .covers import Cover, CoveredPlace
from .errors import MaskUncovered
from .host import Host, is_within, rebase
from .seam import COMMANDS_INSIDE, PROGRAM_INSIDE, SHARED_INSIDE
from .spec import SandboxSpec

SYSTEM_FOLDERS = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/etc", "/opt", "/nix", "/gnu", "/sys"),
)

# What name look-ups, fonts and certificates need of /var and /run. Each is read-only and holds nothing of a person's.
SYSTEM_EXTRAS = (
    "/var/cache/fontconfig",
    "/var/lib/ca-certificates",
    "/var/lib/extrausers",
    "/var/lib/sss/mc",
    "/var/lib/sss/pipes/nss",
    "/run/nscd/socket",
    "/run/nslcd/socket",
    "/run/systemd/userdb",
    "/run/current-system",
)


class Kind(enum.Enum):
    READ_ONLY = "read-only"
    READ_WRITE = "read-write"
    DEVICE = "device"
    SYMLINK = "symlink"
    PROC = "proc"
    DEV = "dev"
    MEMORY = "memory"  # an empty folder in memory
    HIDDEN_FOLDER = "hidden folder"
    HIDDEN_FILE = "hidden file"


@dataclass(frozen=True)
class Mount:
    kind: Kind
    dest: str
    source: str = ""  # the symlink's target for SYMLINK, what is hidden for HIDDEN_*
    ours: bool = False  # put there by us, so it may come from a masked folder


def plan(spec: SandboxSpec, host: Host) -> list[Mount]:
    """The mounts in the order in which they are to be made. Raises MaskUncovered."""
    binds = _distinct([*_system(host), *_session(spec, host)])
    _refuse_uncovered(spec, host, binds)
    covers = _covers(spec, host, binds)
    inner = [mount for mount in [*binds, *covers] if mount.kind is not Kind.READ_WRITE]
    mounts = _distinct([*_scaffold(spec), *binds, *covers, *_pins(inner, binds, covers, host)])
    return sorted(mounts, key=lambda mount: mount.dest.count("/") if mount.dest != "/" else 0)


def covered_places(spec: SandboxSpec, host: Host) -> list[CoveredPlace]:
    """What of a plan is lost when its object is replaced outside: the masks, and what is protected."""
    covers = _covers(spec, host, _distinct([*_system(host), *_session(spec, host)]))
    kinds = {Kind.READ_ONLY: Cover.READ_ONLY}
    return [CoveredPlace(each.dest, each.source, kinds.get(each.kind, Cover.HIDDEN)) for each in covers]


def _scaffold(spec: SandboxSpec) -> list[Mount]:
    tmp = (
        Mount(Kind.READ_WRITE, "/tmp", spec.private_tmp, ours=True) if spec.private_tmp else Mount(Kind.MEMORY, "/tmp")  # noqa: S108
    )
    mounts = [
        Mount(Kind.PROC, "/proc"),
        Mount(Kind.READ_ONLY, "/proc/sys", "/proc/sys"),  # uid 0 could otherwise change the machine's settings
        Mount(Kind.DEV, "/dev"),
        Mount(Kind.MEMORY, "/dev/shm"),  # noqa: S108
        Mount(Kind.MEMORY, "/run"),
        Mount(Kind.SYMLINK, "/var/run", "/run"),
        Mount(Kind.SYMLINK, "/var/tmp", "/tmp"),  # noqa: S108
        tmp,
    ]
    return [*mounts, *(Mount(Kind.DEVICE, device, device) for device in spec.devices)]


def _system(host: Host) -> list[Mount]:
    mounts = []
    for folder in SYSTEM_FOLDERS:
        target = host.link_target(folder)
        if target:
            mounts.append(Mount(Kind.SYMLINK, folder, target))
        elif host.kind(folder):
            mounts.append(Mount(Kind.READ_ONLY, folder, folder))
    extras = [*SYSTEM_EXTRAS, host.real("/etc/resolv.conf")]
    mounts += [
        Mount(Kind.READ_ONLY, extra, host.real(extra))
        for extra in extras
        if host.kind(extra) and not any(is_within(extra, folder) for folder in SYSTEM_FOLDERS)
    ]
    return mounts


def _session(spec: SandboxSpec, host: Host) -> list[Mount]:
    """What is particular to this spec, each path at its real place and, where a symlink led to it, at its own name."""
    wanted = [Mount(Kind.READ_WRITE, spec.workspace, spec.workspace)]
    wanted += [Mount(Kind.READ_WRITE, path, path) for path in spec.read_write]
    wanted += [Mount(Kind.READ_ONLY, path, path) for path in spec.read_only]
    wanted += [Mount(Kind.READ_ONLY, path, path, ours=True) for path in spec.resources]
    wanted += [Mount(Kind.READ_WRITE, place, source, ours=True) for source, place in spec.overlays]
    if spec.home and spec.home_source:
        wanted.append(Mount(Kind.READ_WRITE, spec.home, spec.home_source, ours=True))
    wanted = [mount for mount in wanted if mount.dest == spec.workspace or host.kind(mount.source)]
    found = [Mount(m.kind, host.real(m.dest), host.real(m.source), m.ours) for m in wanted]
    visible = [*_system(host), *found]
    for mount in wanted:
        link = host.first_link(mount.dest)
        if link and not _shows(visible, os.path.dirname(link)):
            found.append(Mount(mount.kind, mount.dest, host.real(mount.source), mount.ours))
    if spec.home and not spec.home_source and not _shows([*visible, *found], host.real(spec.home)):
        found.append(Mount(Kind.MEMORY, spec.home))
    if spec.shared:
        found.append(Mount(Kind.READ_WRITE, SHARED_INSIDE, host.real(spec.shared), ours=True))
    if spec.program:
        found.append(Mount(Kind.READ_ONLY, PROGRAM_INSIDE, host.real(spec.program), ours=True))
    if spec.commands:
        found.append(Mount(Kind.READ_ONLY, COMMANDS_INSIDE, host.real(spec.commands), ours=True))
    return found


def _shows(mounts: Iterable[Mount], path: str) -> bool:
    """Whether the host's own `path` is what one sees at `path`."""
    nearest = _nearest(mounts, path)
    return nearest is not None and nearest.source == nearest.dest


def _nearest(mounts: Iterable[Mount], path: str) -> Mount | None:
    around = [mount for mount in mounts if is_within(path, mount.dest)]
    return max(around, key=lambda mount: len(mount.dest), default=None)


def _distinct(mounts: Iterable[Mount]) -> list[Mount]:
    """The first mount asked for at a place is the one that is made."""
    found: dict[str, Mount] = {}
    for mount in mounts:
        found.setdefault(mount.dest, mount)
    return list(found.values())


def _names(paths: Iterable[str], host: Host) -> list[str]:
    """Every name of those of `paths` that exist."""
    real = sorted({host.real(path) for path in paths if host.kind(path)})
    return [name for path in real for name in host.names(path)]


def _refuse_uncovered(spec: SandboxSpec, host: Host, binds: list[Mount]) -> None:
    masked = _names(spec.masked, host)
    for mount in binds:
        for mask in masked:
            if not mount.ours and mount.source and is_within(mount.source, mask):
                raise MaskUncovered(
                    mount.dest,
                    f"the folder {mount.dest} cannot be shown to a session because {mask} is always hidden from "
                    "sessions: choose a folder outside it",
                )


def _covers(spec: SandboxSpec, host: Host, binds: list[Mount]) -> list[Mount]:
    """The masks, and what is protected, wherever a bind shows it and no mask above hides it already."""
    masks = [(place, bind, name) for name in _names(spec.masked, host) for place, bind in _places(name, binds)]
    folders = [place for place, _, name in masks if host.kind(name) == "folder"]
    covers = [
        Mount(Kind.HIDDEN_FOLDER if host.kind(name) == "folder" else Kind.HIDDEN_FILE, place, name)
        for place, bind, name in masks
        if not _is_hidden(place, bind, folders)
    ]
    covers += [
        Mount(Kind.READ_ONLY, place, name)
        for name in _names(spec.protected, host)
        for place, bind in _places(name, binds)
        if not _is_hidden(place, bind, folders)
    ]
    return covers


def _places(name: str, binds: list[Mount]) -> Iterable[tuple[str, Mount]]:
    """Where inside the host's object `name` would be seen, and by which bind."""
    for mount in binds:
        if mount.kind in (Kind.READ_ONLY, Kind.READ_WRITE) and is_within(name, mount.source):
            place = rebase(name, mount.source, mount.dest)
            if _nearest(binds, place) == mount:
                yield place, mount


def _is_hidden(place: str, bind: Mount, hidden: Iterable[str]) -> bool:
    """Whether a mask lies between the bind and the place that it would show."""
    return any(place != mask and is_within(place, mask) and is_within(mask, bind.dest) for mask in hidden)


def _pins(mounts: Iterable[Mount], binds: list[Mount], covers: list[Mount], host: Host) -> Iterable[Mount]:
    """A folder above a mount can be renamed, and another put in its place, unless it is a mount itself."""
    hidden = [cover.dest for cover in covers if cover.kind is Kind.HIDDEN_FOLDER]
    for mount in mounts:
        above = os.path.dirname(mount.dest)
        base = _nearest([bind for bind in binds if bind.kind is Kind.READ_WRITE], above)
        if base is None or _nearest(binds, above) != base:
            continue
        while above != base.dest:
            source = rebase(above, base.dest, base.source)
            if host.kind(source) and above not in hidden and not _is_hidden(above, base, hidden):
                yield Mount(Kind.READ_WRITE, above, source, ours=True)
            above = os.path.dirname(above)
