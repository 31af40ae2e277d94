"""A splice: bytes both ways, back-pressure both ways, ends and failures passed on."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from openai4s_provisioner.transport.link import Link
from openai4s_provisioner.transport.loop import Loop
from openai4s_provisioner.transport.relay import HIGH_WATER, Splice, splice
from openai4s_provisioner.transport.room import SpoolRoom
from openai4s_provisioner.transport.spool import Spool
from openai4s_provisioner.transport.stream import Stream


class Ends:
    """client socket - splice - link = link - splice - kernel socket, in one loop turned by the test."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.closed: list[str] = []
        self.kernel_stream: Stream | None = None
        self.server = Link(self.loop, self, opens_streams=True)
        self.worker = Link(self.loop, self, opens_streams=False)
        pair = socket.socketpair()
        for sock in pair:
            sock.setblocking(False)
        self.server.attach(pair[0])
        self.worker.attach(pair[1])
        self.client, client_end = socket.socketpair()
        self.kernel, kernel_end = socket.socketpair()
        self.client.setblocking(False)
        self.kernel.setblocking(False)
        self.kernel_end = kernel_end
        stream = self.server.open_stream("k/iopub")
        self.client_splice = splice(self.loop, stream, client_end, on_closed=lambda: self.closed.append("client"))
        self.kernel_splice: Splice | None = None

    def begin(self, spool: Spool | None = None) -> None:
        self.until(lambda: self.kernel_stream)
        assert self.kernel_stream
        self.kernel_splice = splice(
            self.loop, self.kernel_stream, self.kernel_end, spool, lambda: self.closed.append("kernel")
        )

    def control_received(self, message: dict[str, Any]) -> None: ...
    def link_lost(self, reason: str) -> None: ...
    def stream_opened(self, stream: Stream) -> None:
        self.kernel_stream = stream

    def until(self, condition: Callable[[], object], deadline_s: float = 10) -> None:
        deadline = self.loop.now() + deadline_s
        while not condition():
            assert self.loop.now() < deadline, "the condition did not come true in time"
            self.turn()

    def turn(self) -> None:
        tick = self.loop.call_later(0.005, lambda: None)
        self.loop._turn()
        tick.cancel()

    def push(self, sock: socket.socket, data: bytes, turns_without_progress: int = 20) -> int:
        """Writes until nothing moves any more; how many bytes the socket took."""
        sent = idle = 0
        while sent < len(data) and idle < turns_without_progress:
            try:
                sent += sock.send(data[sent : sent + 65536])
                idle = 0
            except BlockingIOError:
                idle += 1
            self.turn()
        return sent

    def pull(self, sock: socket.socket, size: int) -> bytes:
        data = bytearray()

        def done() -> bool:
            with contextlib.suppress(BlockingIOError):
                data.extend(sock.recv(1 << 20))
            return len(data) >= size

        self.until(done)
        return bytes(data)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    for end in (made.client_splice, made.kernel_splice):
        if end is not None:
            end.close()
    made.server.close("over")
    made.worker.close("over")
    for sock in (made.client, made.kernel, made.kernel_end):
        sock.close()
    made.loop.close()


def at_end(ends: Ends, sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_bytes_pass_both_ways_even_those_sent_before_the_kernel_was_there(ends: Ends) -> None:
    ends.client.send(b"early question")
    ends.turn()
    ends.begin()
    assert ends.pull(ends.kernel, 14) == b"early question"
    ends.kernel.send(b"answer")
    assert ends.pull(ends.client, 6) == b"answer"


@pytest.mark.parametrize("towards", ["kernel", "client"])
def test_a_reader_that_stops_stops_its_writer_in_bounded_memory(ends: Ends, towards: str) -> None:
    ends.begin()
    source, sink = (ends.client, ends.kernel) if towards == "kernel" else (ends.kernel, ends.client)
    data = os.urandom(1 << 20) * 8
    taken = ends.push(source, data)
    assert taken < 3 << 20
    assert ends.server.open_stream("x/y").buffered == 0
    for end in (ends.client_splice, ends.kernel_splice):
        assert end is not None
        assert end._stream.buffered < 2 * HIGH_WATER
    got = b""
    while len(got) < len(data):
        got += ends.pull(sink, 1)
        if taken < len(data):
            taken += ends.push(source, data[taken:], 1)
    assert got == data


def test_with_a_spool_the_kernel_is_read_although_nobody_reads(ends: Ends) -> None:
    ends.begin(Spool(SpoolRoom(16 << 20, 0)))
    data = os.urandom(1 << 20) * 8
    assert ends.push(ends.kernel, data) == len(data)
    assert ends.pull(ends.client, len(data)) == data


def test_a_full_spool_that_may_drop_nothing_stops_reading_and_goes_on_later(ends: Ends) -> None:
    ends.begin(Spool(SpoolRoom(1 << 20, 0)))
    data = os.urandom(1 << 20) * 8
    taken = ends.push(ends.kernel, data)
    assert taken < 4 << 20
    got = b""
    while len(got) < len(data):
        got += ends.pull(ends.client, 1)
        if taken < len(data):
            taken += ends.push(ends.kernel, data[taken:], 1)
    assert got == data


def test_half_closes_pass_and_both_make_an_end(ends: Ends) -> None:
    ends.begin()
    ends.client.send(b"last words")
    ends.client.shutdown(socket.SHUT_WR)
    assert ends.pull(ends.kernel, 10) == b"last words"
    ends.until(lambda: at_end(ends, ends.kernel))
    ends.kernel.send(b"answer to the end")
    assert ends.pull(ends.client, 17) == b"answer to the end"
    ends.kernel.close()
    ends.until(lambda: sorted(ends.closed) == ["client", "kernel"])
    assert ends.client_splice.is_closed


def test_a_dead_kernels_spooled_words_arrive_although_it_takes_no_more(ends: Ends) -> None:
    ends.begin(Spool())
    data = os.urandom(1 << 20) * 4
    assert ends.push(ends.kernel, data) == len(data)
    ends.kernel.close()
    ends.client.send(b"nobody hears this")
    for _ in range(20):
        ends.turn()
    assert ends.pull(ends.client, len(data)) == data
    ends.until(lambda: at_end(ends, ends.client))
    ends.client.close()
    ends.until(lambda: sorted(ends.closed) == ["client", "kernel"])


def test_a_client_that_goes_away_ends_the_kernels_side(ends: Ends) -> None:
    ends.begin(Spool())
    ends.kernel.send(b"x" * 1000)
    ends.client.close()
    ends.until(lambda: at_end(ends, ends.kernel))
    ends.kernel.close()
    ends.until(lambda: sorted(ends.closed) == ["client", "kernel"])


def test_closing_a_splice_ends_the_other_side_at_once(ends: Ends) -> None:
    ends.begin()
    assert ends.kernel_splice
    ends.kernel_splice.close()
    ends.kernel_splice.close()
    ends.until(lambda: at_end(ends, ends.client) and sorted(ends.closed) == ["client", "kernel"])
    assert ends.kernel_end.fileno() == -1


def test_a_link_that_is_over_closes_its_splices(ends: Ends) -> None:
    ends.begin(Spool())
    ends.worker.close("over")
    assert ends.closed == ["kernel"]
    ends.until(lambda: at_end(ends, ends.kernel))


def test_a_stream_that_was_over_before_it_was_spliced_is_closed_from_the_loop(ends: Ends) -> None:
    ends.until(lambda: ends.kernel_stream)
    ends.client_splice.close()
    assert ends.kernel_stream
    ends.until(lambda: ends.kernel_stream and ends.kernel_stream.is_over)
    ends.begin()
    assert ends.closed == ["client"]
    ends.until(lambda: ends.closed == ["client", "kernel"])


def test_spooled_output_that_cannot_be_read_back_ends_the_stream(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ends.begin(Spool(SpoolRoom(0, 64 << 20)))
    assert ends.push(ends.kernel, bytes(4 << 20)) == 4 << 20
    monkeypatch.setattr(os, "pread", lambda *args: b"")

    def drained() -> bool:
        with contextlib.suppress(BlockingIOError):
            ends.client.recv(1 << 20)
        return "kernel" in ends.closed

    ends.until(drained)
    assert "cannot be read back" in caplog.text
