"""A crowd of peers that must not get in: a program of its own, so that it shares nothing with the server it troubles.

Reads its orders as JSON from standard input, keeps that many peers at the door until its time is up, and prints as
JSON what each kind of peer heard. A peer that is closed comes again after a pause. Standard library only.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import random
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Any

LONGEST_LINE = 65536
PAUSE_S = (1.0, 4.0)


@dataclass
class Heard:
    """What peers of one kind met with. `said` counts each different answer before the close."""

    turns: int = 0  # connections
    closed: int = 0  # ... that the server closed
    reached: int = 0  # ... in which the peer could do what its kind does
    longest_s: float = 0.0
    said: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Orders:
    host: str
    port: int
    peers: int
    seconds: float
    dribble_s: float
    lines: dict[str, str]  # kind -> the first line that it says behind TLS

    @classmethod
    def read(cls, text: str) -> Orders:
        return cls(**json.loads(text))

    def write(self) -> str:
        return json.dumps(asdict(self))


Peer = Callable[[asyncio.StreamWriter, asyncio.Task[bytes], Orders], Awaitable[None]]


async def silent(writer: asyncio.StreamWriter, end: asyncio.Task[bytes], orders: Orders) -> None:
    await asyncio.sleep(0)


async def dribbling(writer: asyncio.StreamWriter, end: asyncio.Task[bytes], orders: Orders) -> None:
    while not end.done():
        writer.write(b"{" if random.random() < 0.5 else b"\x16")
        await asyncio.wait([end], timeout=orders.dribble_s)


async def oversize(writer: asyncio.StreamWriter, end: asyncio.Task[bytes], orders: Orders) -> None:
    writer.write(b"x" * (LONGEST_LINE + 5000))
    await writer.drain()


async def garbage(writer: asyncio.StreamWriter, end: asyncio.Task[bytes], orders: Orders) -> None:
    writer.write(os.urandom(random.randint(1, 3000)) + b"\n")


async def web_browser(writer: asyncio.StreamWriter, end: asyncio.Task[bytes], orders: Orders) -> None:
    writer.write(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n")


async def tls_garbage(writer: asyncio.StreamWriter, end: asyncio.Task[bytes], orders: Orders) -> None:
    body = os.urandom(random.randint(4, 500))
    writer.write(b"\x16\x03\x01" + len(body).to_bytes(2, "big") + b"\x01" + body[1:])


async def nested(writer: asyncio.StreamWriter, end: asyncio.Task[bytes], orders: Orders) -> None:
    writer.write(b'{"v":1,"resume":' + b"[" * 60000 + b"\n")


def saying(line: str) -> Peer:
    async def peer(writer: asyncio.StreamWriter, end: asyncio.Task[bytes], orders: Orders) -> None:
        writer.write(line.encode())

    return peer


PLAIN: dict[str, Peer] = {
    "tcp silent": silent,
    "tcp dribbling": dribbling,
    "tcp oversize": oversize,
    "tcp garbage": garbage,
    "tcp web browser": web_browser,
    "tcp TLS garbage": tls_garbage,
}
BEHIND_TLS: dict[str, Peer] = {
    "tls silent": silent,
    "tls dribbling": dribbling,
    "tls oversize": oversize,
    "tls garbage": garbage,
    "tls nested JSON": nested,
}


async def _end_of(reader: asyncio.StreamReader) -> bytes:
    """Everything until the server closes, however it does that."""
    said = b""
    try:
        while data := await reader.read(4096):
            said += data
    except (OSError, ssl.SSLError):
        pass
    return said


async def _turn(kind: str, peer: Peer, context: ssl.SSLContext | None, orders: Orders, heard: Heard) -> None:
    """One connection, to its end."""
    heard.turns += 1
    started = time.monotonic()
    try:
        reader, writer = await asyncio.open_connection(orders.host, orders.port, ssl=context, limit=2**20)
    except (OSError, ssl.SSLError):  # over the limit, in the midst of TLS
        heard.closed += 1
        return
    challenged = kind.startswith("resume")
    end = asyncio.ensure_future(_challenged(reader, writer) if challenged else _end_of(reader))
    try:
        with contextlib.suppress(OSError, ssl.SSLError):
            await peer(writer, end, orders)
        said = _shown(await end)
        heard.said[said] = heard.said.get(said, 0) + 1
        took = time.monotonic() - started
        # Over the limit it is closed at once; those who only wait have had their turn when they could wait.
        heard.reached += context is not None or took > 0.5 or not kind.endswith(("silent", "dribbling"))
        heard.closed += 1
        heard.longest_s = max(heard.longest_s, took)
    finally:
        end.cancel()
        writer.transport.abort()


async def _challenged(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The challenge is the same for every asker but for its numbers, so these are left out."""
    try:
        challenge = json.loads(await reader.readline() or b"{}")
        proof = base64.b64encode(os.urandom(32)).decode()
        writer.write(json.dumps({"proof": proof}).encode() + b"\n")
    except (OSError, ssl.SSLError, ValueError):
        return b""
    return " ".join(sorted(challenge)).encode() + await _end_of(reader)


def _shown(said: bytes) -> str:
    return said[:200].decode("latin-1")


async def _stay(kind: str, peer: Peer, context: ssl.SSLContext | None, orders: Orders, heard: Heard) -> None:
    await asyncio.sleep(random.random())
    while True:
        await _turn(kind, peer, context, orders, heard)
        await asyncio.sleep(random.uniform(*PAUSE_S))


async def _besiege(orders: Orders) -> dict[str, Heard]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    kinds: list[tuple[str, Peer, ssl.SSLContext | None]] = [(kind, peer, None) for kind, peer in PLAIN.items()]
    kinds += [(kind, peer, context) for kind, peer in BEHIND_TLS.items()]
    kinds += [(kind, saying(line), context) for kind, line in orders.lines.items()]
    heard = {kind: Heard() for kind, _, _ in kinds}
    crowd = [
        asyncio.ensure_future(_stay(kind, peer, encryption, orders, heard[kind]))
        for kind, peer, encryption in (kinds[number % len(kinds)] for number in range(orders.peers))
    ]
    await asyncio.sleep(orders.seconds)
    for each in crowd:
        each.cancel()
    for outcome in await asyncio.gather(*crowd, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
    return heard


def main() -> int:
    os.nice(19)  # the crowd has machines of its own, as far as this one can pretend
    orders = Orders.read(sys.stdin.read())
    result: dict[str, Any] = {kind: asdict(heard) for kind, heard in asyncio.run(_besiege(orders)).items()}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
