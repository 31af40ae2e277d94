"""Two sockets joined: every byte arrives, a slow side holds the other up, ends pass through."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from openai4s_provisioner.transport.joint import CHUNK, Joint
from openai4s_provisioner.transport.loop import Loop


class Joined:
    """client - joint - kernel, in one loop turned by the test. The kernel's side is TCP, as it is in earnest."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.changes = 0
        self.client, one = socket.socketpair()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            other = socket.create_connection(listening.getsockname())
            self.kernel, _ = listening.accept()
        for end in (self.client, self.kernel):
            end.setblocking(False)
        self.joint = Joint(self.loop, one, other, self._changed)

    def _changed(self) -> None:
        self.changes += 1

    def turn(self) -> None:
        tick = self.loop.call_later(0.005, lambda: None)
        self.loop._turn()
        tick.cancel()

    def until(self, condition: Callable[[], object], deadline_s: float = 10) -> None:
        deadline = self.loop.now() + deadline_s
        while not condition():
            assert self.loop.now() < deadline, "the condition did not come true in time"
            self.turn()

    def carry(self, source: socket.socket, sink: socket.socket, data: bytes) -> bytes:
        """What arrives, when everything that the source will take is sent and everything that comes is read."""
        arrived, sent = bytearray(), 0
        while len(arrived) < len(data):
            if sent < len(data):
                with contextlib.suppress(BlockingIOError):
                    sent += source.send(data[sent : sent + CHUNK])
            self.turn()
            arrived += self.read(sink)
        return bytes(arrived)

    def read(self, sock: socket.socket) -> bytes:
        """What has come by now."""
        with contextlib.suppress(BlockingIOError):
            return sock.recv(CHUNK)
        return b""

    def stuff(self, source: socket.socket) -> int:
        """How many bytes go in before nothing moves any more."""
        taken = idle = 0
        while idle < 20:
            try:
                taken += source.send(bytes(CHUNK))
                idle = 0
            except BlockingIOError:
                idle += 1
            self.turn()
        return taken

    def has_ended(self, sock: socket.socket) -> bool:
        try:
            return sock.recv(1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def joined() -> Iterator[Joined]:
    before = len(os.listdir("/proc/self/fd"))
    made = Joined()
    yield made
    made.joint.close()
    made.loop.close()
    made.client.close()
    made.kernel.close()
    assert len(os.listdir("/proc/self/fd")) == before, "no descriptor is left"


def test_every_byte_arrives_both_ways(joined: Joined) -> None:
    data = os.urandom(3_000_000)
    assert joined.carry(joined.client, joined.kernel, data) == data
    assert joined.carry(joined.kernel, joined.client, data) == data


def test_a_reader_that_stops_holds_the_writer_up_and_loses_nothing(joined: Joined) -> None:
    for source, sink in ((joined.kernel, joined.client), (joined.client, joined.kernel)):
        taken = joined.stuff(source)
        assert taken < 32 * 1024 * 1024, "what waits is bounded"
        arrived = 0
        while arrived < taken:
            joined.turn()
            arrived += len(joined.read(sink))
        assert arrived == taken
        assert joined.carry(sink, source, b"the other way is free") == b"the other way is free"


def test_the_end_of_one_direction_passes_through_and_the_other_goes_on(joined: Joined) -> None:
    joined.client.send(b"that is all")
    joined.client.shutdown(socket.SHUT_WR)
    joined.until(lambda: joined.changes)
    assert joined.kernel.recv(100) == b"that is all"
    joined.until(lambda: joined.has_ended(joined.kernel))
    assert not joined.joint.is_closed
    assert joined.carry(joined.kernel, joined.client, b"an answer") == b"an answer"
    joined.kernel.close()
    joined.until(lambda: joined.joint.is_closed)


def test_last_words_arrive_although_nobody_takes_what_is_sent(joined: Joined) -> None:
    words = os.urandom(100_000)
    joined.kernel.send(words)
    joined.kernel.close()
    joined.client.send(b"x" * 1000)
    arrived = b""
    while len(arrived) < len(words):
        joined.turn()
        arrived += joined.read(joined.client)
    assert arrived == words
    joined.until(lambda: joined.joint.is_other_silent)


def test_a_reset_ends_the_other_side(joined: Joined) -> None:
    joined.kernel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    joined.kernel.close()
    joined.until(lambda: joined.has_ended(joined.client))
    joined.client.close()
    joined.until(lambda: joined.joint.is_closed)


def test_closing_it_ends_both_sides_at_once_and_only_once(joined: Joined) -> None:
    joined.joint.close()
    joined.joint.close()
    assert joined.changes == 1
    joined.until(lambda: joined.has_ended(joined.client))
    joined.until(lambda: joined.has_ended(joined.kernel))
