"""A /dev of its own for a process and what it starts, with device files in it that no driver serves.

The machine's /dev stays as it is: it belongs to everything that runs here, and whatever finds a card in it counts it.
Needs root.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping

_NOT_ANY_DRIVER = 240  # a major number that Linux leaves to experiments
_MAKE = """
set -e
new=$(mktemp -d)
mount -t tmpfs -o mode=755 none "$new"
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/fd /dev/stdin /dev/stdout /dev/stderr "$new"
for each in pts shm mqueue; do
    [ -d "/dev/$each" ] || continue
    mkdir "$new/$each" && mount --rbind "/dev/$each" "$new/$each"
done
cp -a /dev/ptmx "$new"
number=0
for card in "$@"; do
    mknod "$new/${card%=*}" c MAJOR $number && chmod "${card#*=}" "$new/${card%=*}"
    number=$((number + 1))
done
mount --move "$new" /dev
rmdir "$new"
""".replace("MAJOR", str(_NOT_ANY_DRIVER))


def add_devices(pid: int, modes: Mapping[str, int]) -> None:
    """`pid`: a process with mounts of its own, which keep to themselves. `modes`: by name, numbered from 0."""
    _in_mounts_of(pid, "sh", "-c", _MAKE, "sh", *(f"{name}={mode:o}" for name, mode in modes.items()))


def remove_devices(pid: int) -> None:
    _in_mounts_of(pid, "umount", "-l", "/dev")


@contextlib.contextmanager
def private_devices(modes: Mapping[str, int]) -> Iterator[int]:
    """A process that holds such a /dev, for `command_beside`; its id."""
    holding = ["unshare", "--mount", "--propagation", "private", "--", "cat"]
    with subprocess.Popen(holding, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            holder.stdin.write(b".")
            holder.stdout.read(1)  # what answers has its own mounts already
            add_devices(holder.pid, modes)
            yield holder.pid
        finally:
            holder.stdin.close()


def command_beside(pid: int, uid: int, gid: int, argv: list[str]) -> list[str]:
    """What root runs so that `argv` runs as this account, and has that /dev."""
    account = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--"]
    return ["nsenter", f"--mount=/proc/{pid}/ns/mnt", "--", *account, *argv]


def _in_mounts_of(pid: int, *command: str) -> None:
    subprocess.run(["nsenter", f"--mount=/proc/{pid}/ns/mnt", "--", *command], check=True, capture_output=True)
