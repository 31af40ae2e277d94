"""Which process listens on a unix socket that a sandbox has made, as the machine's kernel knows it."""

from __future__ import annotations

import contextlib
import os
import socket
import struct

_PATIENCE_S = 0.2


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
