"""The command ``openai4s`` inside a sandbox: ``run -- COMMAND`` is a task in the session's allocation, ``keep`` keeps
the session: its idle time begins anew.

With ``--ranks all`` it runs once on every rank, each line behind its rank's number. It asks over the socket in this
kernel's own folder, prints what the task prints, and exits as the task did. It holds no credential: that one can ask
is all it knows. Leaving it, by an interrupt too, cancels the task.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys

from ..sandbox.seam import SHARED_INSIDE
from .door import END, SOCKET_NAME

_USAGE = "usage: openai4s run [--ranks all] -- COMMAND [ARGUMENT ...]\n       openai4s keep\n"


def main(argv: list[str]) -> int:
    every_rank = argv[:4] == ["run", "--ranks", "all", "--"]
    words = argv[4:] if every_rank else argv[2:]
    if argv == ["keep"]:
        wish: dict[str, object] = {"keep": True}
    elif words and (every_rank or argv[:2] == ["run", "--"]):
        wish = {"argv": words, "cwd": os.getcwd(), "every_rank": every_rank}
    else:
        sys.stderr.write(_USAGE)
        return 2
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.connect(f"{SHARED_INSIDE}/{SOCKET_NAME}")
    except OSError:
        sys.stderr.write("openai4s: there is no session here: call it from a kernel\n")
        return 1
    try:
        peer.sendall(json.dumps(wish).encode() + b"\n")
        return _follow(peer)
    except KeyboardInterrupt:
        return 130
    except (OSError, EOFError):
        sys.stderr.write("openai4s: the session went away before the end\n")
        return 1


def _follow(peer: socket.socket) -> int:
    with peer.makefile("rb") as stream:
        while True:
            header = stream.read(5)
            if len(header) < 5:
                raise EOFError
            (length,) = struct.unpack("!I", header[1:])
            data = stream.read(length)
            if header[:1] == END:
                return _status(json.loads(data))
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


def _status(end: dict[str, object]) -> int:
    said = end.get("refused") or end.get("problem")
    if said:
        sys.stderr.write(f"openai4s: {said}\n")
    code, number = end.get("exit_code"), end.get("signal")
    if isinstance(number, int):
        return 128 + number
    return code if isinstance(code, int) else 1
