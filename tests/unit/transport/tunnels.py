"""Two links with nothing but a pair of sockets between them, and what they tell their owners."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from openai4s_provisioner.transport.link import Link
from openai4s_provisioner.transport.loop import Loop
from openai4s_provisioner.transport.stream import Stream


class Owner:
    """Records what a link tells it."""

    def __init__(self) -> None:
        self.control: list[dict[str, Any]] = []
        self.streams: list[Stream] = []
        self.lost: list[str] = []

    def control_received(self, message: dict[str, Any]) -> None:
        self.control.append(message)

    def stream_opened(self, stream: Stream) -> None:
        self.streams.append(stream)

    def link_lost(self, reason: str) -> None:
        self.lost.append(reason)


class LikeTls:
    """A socket with a layer in it: it reads ahead, gives little at a time, and takes little at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.ahead = bytearray()

    def fileno(self) -> int:
        return self.sock.fileno()

    def recv_into(self, buffer: memoryview) -> int:
        if not self.ahead:
            self.ahead += self.sock.recv(1 << 20)
        size = min(len(self.ahead), 1000)
        buffer[:size] = self.ahead[:size]
        del self.ahead[:size]
        return size

    def send(self, data: memoryview) -> int:
        return self.sock.send(data[:700])

    def close(self) -> None:
        self.sock.close()


class Tunnel:
    """Two links in one loop, driven by the test: `until(condition)` turns the loop that long."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.at_server, self.at_worker = Owner(), Owner()
        self.server = Link(self.loop, self.at_server, opens_streams=True, ping_s=60)
        self.worker = Link(self.loop, self.at_worker, opens_streams=False, ping_s=60)
        self.sockets: list[socket.socket] = []

    def connect(self) -> None:
        pair = socket.socketpair()
        for sock in pair:
            sock.setblocking(False)
        self.sockets = list(pair)
        received = self.server.received, self.worker.received
        self.server.attach(pair[0], peer_received=received[1])
        self.worker.attach(pair[1], peer_received=received[0])

    def cut(self) -> None:
        self.sockets[0].shutdown(socket.SHUT_RDWR)
        self.until(lambda: not self.server.is_attached and not self.worker.is_attached)

    def until(self, condition: Callable[[], object], deadline_s: float = 10) -> None:
        deadline = self.loop.now() + deadline_s
        tick = self.loop.call_later(0.01, lambda: None)
        while not condition():
            assert self.loop.now() < deadline, "the condition did not come true in time"
            tick.cancel()
            tick = self.loop.call_later(0.01, lambda: None)
            self.loop._turn()

    def opened(self, channel: str = "k/shell") -> tuple[Stream, Stream]:
        ours = self.server.open_stream(channel)
        self.until(lambda: self.at_worker.streams)
        return ours, self.at_worker.streams.pop()


def record(stream: Stream) -> tuple[bytearray, list[str]]:
    """Takes and consumes all data; the bytes, and the names of the other callbacks."""
    data, seen = bytearray(), []

    def on_data(piece: bytes) -> None:
        data.extend(piece)
        stream.consume(len(piece))

    stream.on_end = lambda: seen.append("end")
    stream.on_reset = lambda: seen.append("reset")
    stream.on_data = on_data
    return data, seen
