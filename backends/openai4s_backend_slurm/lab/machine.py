"""What the machine offers a cluster: free ports, a folder that munged accepts, devices that pass for GPUs."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import stat
from pathlib import Path

from .errors import LabError
from .shape import GPUS_EACH, NODES, Ports

_PORTS = range(20000, 32000)  # below what the kernel hands to clients, so that none of them takes one meanwhile
_NOT_ANY_DRIVER = 240  # a major number that Linux leaves to experiments


def free_ports() -> Ports:
    """Ports that nobody listens on now. Different for every cluster, so that several run side by side."""
    count = len(NODES) + 3
    for _ in range(200):
        first = random.SystemRandom().randrange(_PORTS.start, _PORTS.stop - count)
        numbers = range(first, first + count)
        if all(_is_free(number) for number in numbers):
            return Ports(numbers[0], tuple(numbers[1 : 1 + len(NODES)]), numbers[-2], numbers[-1])
    raise LabError(f"no {count} free ports in a row between {_PORTS.start} and {_PORTS.stop}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
        return True


def check_ancestors(folder: Path, uid: int) -> None:
    """munged trusts its key only below folders that nobody but root and itself can change."""
    for ancestor in folder.parents:
        found = ancestor.stat()
        writable = stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
        if found.st_uid not in (0, uid) or (writable and not found.st_mode & stat.S_ISVTX):
            raise LabError(
                f"{ancestor} belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}, and munged "
                f"wants every folder above its own to belong to root or to user {uid} and to be closed to others: "
                "choose another folder with --folder"
            )


def gpu_devices(folder: Path) -> str:
    """Two character devices, as a Slurm range. As root ones that no driver serves; else two terminals do."""
    made = folder / "gpu"
    with contextlib.suppress(PermissionError, OSError):
        for number in range(GPUS_EACH):
            device = folder / f"gpu{number}"
            if not device.exists():
                os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(_NOT_ANY_DRIVER, number))
                device.chmod(0o666)
        return f"{made}[0-{GPUS_EACH - 1}]"
    return f"/dev/tty[0-{GPUS_EACH - 1}]"


def has_unified_groups() -> bool:
    """Whether control groups are those of version 2 alone."""
    return Path("/sys/fs/cgroup/cgroup.controllers").exists()


def host_name() -> str:
    return socket.gethostname().partition(".")[0]
