"""A link keeps its state over the sockets it loses, and its owners' failures to themselves."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from openai4s_provisioner.transport.link import Link
from openai4s_provisioner.transport.loop import Loop
from openai4s_provisioner.wire.errors import ProtocolError
from openai4s_provisioner.wire.frames import FrameType, encode

from .tunnels import LikeTls, Owner, Tunnel, record


@pytest.fixture
def tunnel() -> Iterator[Tunnel]:
    made = Tunnel()
    made.connect()
    yield made
    made.server.close("the test is over")
    made.worker.close("the test is over")
    made.loop.close()


def test_bytes_ends_and_control_pass(tunnel: Tunnel) -> None:
    ours, theirs = tunnel.opened("k/shell")
    assert theirs.channel == "k/shell"
    data, seen = record(theirs)
    ours.write(b"x" * 1_000_000)
    ours.finish()
    tunnel.worker.send_control({"type": "hello"})
    tunnel.until(lambda: seen and tunnel.at_server.control)
    assert (len(data), seen) == (1_000_000, ["end"])
    assert tunnel.at_server.control == [{"type": "hello"}]


def test_a_full_socket_is_written_on_as_soon_as_it_takes_more(tunnel: Tunnel) -> None:
    class Full(LikeTls):
        calls = 0

        def send(self, data: memoryview) -> int:
            self.calls += 1
            if self.calls == 2:
                raise BlockingIOError
            return super().send(data)

    pair = socket.socketpair()
    for sock in pair:
        sock.setblocking(False)
    tunnel.server.attach(Full(pair[0]))
    tunnel.worker.attach(pair[1])
    tunnel.server.send_control({"filler": "x" * 1000})
    tunnel.until(lambda: tunnel.at_worker.control)


def test_what_comes_before_the_owner_is_ready_is_kept_and_comes_in_order(tunnel: Tunnel) -> None:
    ours, theirs = tunnel.opened()
    ours.write(b"early")
    ours.finish()
    tunnel.until(lambda: theirs._is_end_held)
    data, seen = record(theirs)
    tunnel.until(lambda: seen)
    assert (bytes(data), seen) == (b"early", ["end"])


def test_a_cut_and_resume_loses_and_repeats_nothing(tunnel: Tunnel) -> None:
    ours, theirs = tunnel.opened()
    data, _ = record(theirs)
    sent = b""
    for number in range(30):
        piece = bytes([number]) * 50_000
        ours.write(piece)
        sent += piece
        tunnel.loop._turn()
        tunnel.cut()
        ours.write(b"while there was no socket")
        sent += b"while there was no socket"
        tunnel.connect()
    tunnel.until(lambda: len(data) == len(sent))
    assert data == sent
    assert len(tunnel.at_server.lost) == 30


def test_what_was_read_behind_the_handshake_comes_first() -> None:
    loop, owner = Loop(), Owner()
    link = Link(loop, owner, opens_streams=False)
    one, other = socket.socketpair()
    one.setblocking(False)
    frames = [b"".join(encode(FrameType.CTRL, 0, b'{"n":%d}' % number)) for number in range(3)]
    data = b"".join(frames)
    other.send(data[30:])
    loop.call_soon(link.attach, one, data[:30])
    loop.call_later(0.05, loop.stop)
    loop.run()
    assert [message["n"] for message in owner.control] == [0, 1, 2]
    assert link.received == len(data)
    link.close("over")
    other.close()


def test_a_layer_that_holds_bytes_which_the_descriptor_does_not_show_is_read_to_the_end() -> None:
    tunnel = Tunnel()
    pair = socket.socketpair()
    for sock in pair:
        sock.setblocking(False)
    tunnel.server.attach(LikeTls(pair[0]))
    tunnel.worker.attach(LikeTls(pair[1]))
    ours, theirs = tunnel.opened()
    data, seen = record(theirs)
    ours.write(bytes(1_000_000))
    ours.finish()
    tunnel.until(lambda: seen)
    assert len(data) == 1_000_000
    tunnel.server.close("over")
    tunnel.worker.close("over")
    tunnel.loop.close()


@pytest.mark.parametrize("offset", [1, 10**9])
def test_an_impossible_resume_is_refused_and_changes_nothing(tunnel: Tunnel, offset: int) -> None:
    ours, theirs = tunnel.opened()
    data, _ = record(theirs)
    tunnel.until(lambda: tunnel.server._connection.outgoing.unsent == 0)
    one, other = socket.socketpair()
    tunnel.server._connection.outgoing.acknowledge(2)
    with pytest.raises(ProtocolError):
        tunnel.server.attach(one, peer_received=offset)
    ours.write(b"still there")
    tunnel.until(lambda: data == b"still there")
    one.close()
    other.close()


def test_a_second_socket_replaces_the_first(tunnel: Tunnel) -> None:
    ours, theirs = tunnel.opened()
    data, _ = record(theirs)
    first = tunnel.sockets[0]
    tunnel.connect()
    ours.write(b"on the new one")
    tunnel.until(lambda: data == b"on the new one")
    assert first.fileno() == -1
    assert tunnel.at_server.lost == []


def test_a_peer_that_breaks_the_protocol_ends_the_link_for_good(tunnel: Tunnel) -> None:
    ours, _ = tunnel.opened()
    _, seen = record(ours)
    tunnel.worker._detach()
    one, other = socket.socketpair()
    one.setblocking(False)
    tunnel.server.attach(one, peer_received=tunnel.worker.received)
    other.send(b"\xff" * 100)
    tunnel.until(lambda: tunnel.at_server.lost)
    assert tunnel.at_server.lost[0].startswith("protocol error: unknown frame type")
    assert (seen, ours.is_over, tunnel.server.is_over) == (["reset"], True, True)
    with pytest.raises(ProtocolError):
        tunnel.server.attach(one)
    ours.write(b"into the void")
    other.close()


def test_closing_resets_the_streams_and_tells_no_loss(tunnel: Tunnel) -> None:
    ours, _ = tunnel.opened()
    _, seen = record(ours)
    tunnel.server.close("enough")
    assert (seen, tunnel.at_server.lost, tunnel.server.is_attached) == (["reset"], [], False)
    tunnel.until(lambda: tunnel.at_worker.lost)
    assert len(tunnel.at_worker.lost) == 1


def test_the_last_words_of_a_peer_that_closed_are_heard_although_writing_to_it_fails(tunnel: Tunnel) -> None:
    tunnel.opened()
    tunnel.worker.send_control({"type": "ended"})
    tunnel.worker._flush()
    tunnel.worker._detach()
    tunnel.server.send_control({"type": "too late"})
    tunnel.server._flush()
    assert tunnel.at_server.control == [{"type": "ended"}]
    assert len(tunnel.at_server.lost) == 1


def test_a_reset_reaches_the_peer_and_no_callback_comes_after_it(tunnel: Tunnel) -> None:
    ours, theirs = tunnel.opened()
    _, seen_here = record(ours)
    _, seen_there = record(theirs)
    theirs.write(b"crosses")
    ours.reset()
    ours.write(b"nothing")
    tunnel.until(lambda: seen_there)
    assert (seen_here, seen_there) == ([], ["reset"])


def test_an_owner_that_raises_costs_its_own_stream_only(tunnel: Tunnel, caplog: pytest.LogCaptureFixture) -> None:
    bad, bad_there = tunnel.opened("k/iopub")
    good, good_there = tunnel.opened("k/shell")
    data, _ = record(good_there)
    _, seen = record(bad)

    def on_data(piece: bytes) -> None:
        raise RuntimeError("on purpose")

    bad_there.on_data = on_data
    bad.write(b"x")
    good.write(b"fine")
    tunnel.until(lambda: seen == ["reset"] and data == b"fine")
    assert "the owner of stream k/iopub failed" in caplog.text


def test_a_handler_that_raises_costs_nothing_behind_it(tunnel: Tunnel, caplog: pytest.LogCaptureFixture) -> None:
    def control_received(message: dict[str, Any]) -> None:
        if message["n"] == 0:
            raise RuntimeError("on purpose")
        seen.append(message["n"])

    seen: list[int] = []
    tunnel.at_worker.control_received = control_received  # type: ignore[method-assign]
    for number in range(3):
        tunnel.server.send_control({"n": number})
    tunnel.until(lambda: seen == [1, 2])


def test_a_silent_peer_is_lost_in_time_and_a_silent_link_with_a_living_one_is_not() -> None:
    tunnel = Tunnel()
    tunnel.server = Link(tunnel.loop, tunnel.at_server, opens_streams=True, ping_s=0.02, dead_s=0.06)
    tunnel.connect()
    until = tunnel.loop.now() + 0.3
    tunnel.until(lambda: tunnel.loop.now() > until)
    assert tunnel.at_server.lost == []
    tunnel.loop.unwatch(tunnel.sockets[1].fileno())
    tunnel.until(lambda: tunnel.at_server.lost)
    assert tunnel.at_server.lost == ["the peer was silent for 0.06 s"]
    assert tunnel.server.received > 0
    tunnel.worker.close("over")
    tunnel.loop.close()


def test_delivery_is_told_once_the_peer_has_everything(tunnel: Tunnel) -> None:
    ours, theirs = tunnel.opened()
    told: list[str] = []
    held: list[bytes] = []
    theirs.on_data = held.append
    ours.write(bytes(300_000))
    tunnel.server.send_control({"type": "last"})
    tunnel.server.when_delivered(lambda: told.append("delivered"))
    tunnel.until(lambda: sum(map(len, held)) == 256 * 1024)
    tunnel.cut()
    tunnel.connect()
    assert told == []
    theirs.consume(256 * 1024)
    tunnel.until(lambda: told)
    assert sum(map(len, held)) == 300_000
    assert tunnel.at_worker.control == [{"type": "last"}]


def test_delivery_is_not_told_by_what_only_the_kernel_buffered(tunnel: Tunnel) -> None:
    told: list[str] = []
    worker_end = tunnel.sockets[1].fileno()
    tunnel.until(lambda: tunnel.worker._is_started)
    tunnel.loop.unwatch(worker_end)
    tunnel.server.send_control({"type": "last"})
    tunnel.server.when_delivered(lambda: told.append("delivered"))
    tunnel.until(lambda: tunnel.server._connection.outgoing.unsent == 0)
    later = tunnel.loop.now() + 0.05
    tunnel.until(lambda: tunnel.loop.now() > later)
    assert told == []
    tunnel.worker._watch()
    tunnel.until(lambda: told)


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_a_stream_that_both_ends_finished_is_forgotten_at_both(tunnel: Tunnel, first: str) -> None:
    ours, theirs = tunnel.opened()
    seen = {"ours": record(ours)[1], "theirs": record(theirs)[1]}
    finish = {"ours": (ours.finish, "theirs"), "theirs": (theirs.finish, "ours")}
    for name in (first, "theirs" if first == "ours" else "ours"):
        call, peer = finish[name]
        call()
        tunnel.until(lambda peer=peer: seen[peer])  # type: ignore[misc]
    tunnel.until(lambda: tunnel.server._connection.outgoing.unsent == 0)
    assert tunnel.server._streams == {}
    assert tunnel.worker._streams == {}


def test_streams_that_ended_are_forgotten(tunnel: Tunnel) -> None:
    for number in range(20):
        ours, theirs = tunnel.opened(f"k{number}/hb")
        record(theirs)
        record(ours)
        ours.write(b"x")
        if number % 2:
            ours.finish()
            theirs.finish()
        else:
            theirs.reset()
    tunnel.until(lambda: not tunnel.server._streams and not tunnel.worker._streams)
    assert not tunnel.server._mux._streams
    assert not tunnel.worker._mux._streams


def test_a_writer_is_told_when_little_waits(tunnel: Tunnel) -> None:
    ours, theirs = tunnel.opened()
    data, _ = record(theirs)
    left = [bytes([number]) * 100_000 for number in range(50)]
    most = 0

    def on_writable() -> None:
        nonlocal most
        while left and ours.buffered < 128 * 1024:
            ours.write(left.pop(0))
            most = max(most, ours.buffered)

    ours.on_writable = on_writable
    on_writable()
    tunnel.until(lambda: len(data) == 5_000_000)
    assert most < 256 * 1024
