"""Which process listens on a socket that a sandbox has made, as the machine's kernel knows it.

Two questions: of a unix socket, asked from outside; of a TCP port, asked inside, where the network and the processes
of the sandbox can be seen. Neither trusts what a process says of itself.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

_PATIENCE_S = 0.2
_LISTENS = "0A"  # a state, as /proc/net/tcp writes it


def listener_pid(path: str) -> int | None:
    """Its pid, in our own namespace; None when nobody listens. A symlink, which could lead anywhere, is nobody."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        anchor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            probe.settimeout(_PATIENCE_S)
            probe.connect(f"/proc/self/fd/{anchor}")
        finally:
            os.close(anchor)
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[0]) or None
    return None


def port_listener_pid(port: int, proc: str = "/proc") -> int | None:
    """The pid, in this namespace, of the process that listens on TCP `port`; of several that share it, the eldest."""
    wanted = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listening(f"{proc}/net/{table}", port)}
    pids = sorted(int(name) for name in os.listdir(proc) if name.isdigit())
    return next((pid for pid in pids if wanted and _holds(f"{proc}/{pid}/fd", wanted)), None)


def _listening(table: str, port: int) -> list[str]:
    """The inodes of the sockets that listen on `port`."""
    try:
        with open(table, encoding="ascii") as lines:
            rows = [line.split() for line in lines][1:]
    except OSError:
        return []
    return [row[9] for row in rows if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port]


def _holds(folder: str, wanted: set[str]) -> bool:
    try:
        names = os.listdir(folder)
    except OSError:  # it is gone, or closed to us
        return False
    for name in names:
        with contextlib.suppress(OSError):
            if os.readlink(f"{folder}/{name}") in wanted:
                return True
    return False
