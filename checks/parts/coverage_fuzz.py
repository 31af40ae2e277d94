"""Coverage-guided fuzzing of the wire's tables with atheris: a program that ends with status 0 when nothing came out.

The first byte chooses the table, the second how the rest is cut into pieces. Any exception but ProtocolError, and any
proof accepted without its key, is a crash that atheris reports with its input.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import atheris

with atheris.instrument_imports(include=["openai4s_provisioner.wire"]):
    from openai4s_provisioner.wire.connection import Connection
    from openai4s_provisioner.wire.errors import ProtocolError
    from openai4s_provisioner.wire.handshake import (
        Hello,
        Resume,
        ResumeAsked,
        ResumeProven,
        ServerHandshake,
        WorkerHandshake,
    )
    from openai4s_provisioner.wire.zmtp import MessageFinder

KEY = bytes(range(32))
HELLO = Hello("o4s.credential", KEY, "node1", 42, "3.9.18")
RESUME = Resume("alloc-1", 0, 5, KEY)


def _server(pieces: list[bytes]) -> None:
    table = ServerHandshake()
    for piece in pieces:
        event = table.receive(piece)
        assert not isinstance(event, ResumeProven), "proven without the key"
        if isinstance(event, ResumeAsked):
            table.challenge(bytes(32), 0, KEY)


def _challenged_server(pieces: list[bytes]) -> None:
    table = ServerHandshake()
    table.receive(WorkerHandshake(RESUME).opening)
    table.challenge(bytes(32), 0, KEY)
    for piece in pieces:
        assert table.receive(piece) is None, "proven without the key"


def _worker(pieces: list[bytes]) -> None:
    for saying in (HELLO, RESUME):
        table = WorkerHandshake(saying)
        for piece in pieces:
            table.receive(piece)


def _link(opens_streams: bool) -> Callable[[list[bytes]], None]:
    def run(pieces: list[bytes]) -> None:
        link = Connection(opens_streams=opens_streams)
        if opens_streams:
            link.mux.open("kernel/shell")
        link.fill(4096)
        for piece in pieces:
            for _ in link.receive(piece):
                pass
            link.fill(4096)

    return run


def _zmtp(pieces: list[bytes]) -> None:
    finder = MessageFinder()
    for piece in pieces:
        starts = finder.feed(piece)
        assert all(0 <= start < len(piece) for start in starts), "a message that begins nowhere"


_TABLES = (_server, _challenged_server, _worker, _link(True), _link(False), _zmtp)


def one_input(data: bytes) -> None:
    if len(data) < 3:
        return
    middle = 2 + data[1] * (len(data) - 2) // 255
    pieces = [piece for piece in (data[2:middle], data[middle:]) if piece]
    try:
        _TABLES[data[0] % len(_TABLES)](pieces)
    except ProtocolError:
        return


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
