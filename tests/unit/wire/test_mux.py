"""Streams, credit and order of sending, between two muxes and against a peer that breaks the rules."""

from __future__ import annotations

import itertools
import struct

import pytest

from openai4s_provisioner.wire import mux as mux_module
from openai4s_provisioner.wire.errors import ProtocolError
from openai4s_provisioner.wire.frames import Frame, FrameDecoder, FrameType
from openai4s_provisioner.wire.mux import (
    CHUNK,
    MAX_STREAMS,
    MAX_WAITING_CONTROL,
    MAX_WAITING_CONTROL_BYTES,
    MAX_WINDOW,
    WINDOW,
    ControlReceived,
    DataReceived,
    Mux,
    MuxEvent,
    StreamFinished,
    StreamOpened,
    StreamReset,
)
from openai4s_provisioner.wire.streams import TRANSITIONS, Move, State


def frames_of(mux: Mux) -> list[Frame]:
    """Everything that `mux` may send now."""
    data = b"".join(itertools.chain.from_iterable(iter(mux.next_frame, None)))
    return list(FrameDecoder().feed(data))


def pass_on(sender: Mux, receiver: Mux) -> list[MuxEvent]:
    return [event for frame in frames_of(sender) if (event := receiver.receive(frame)) is not None]


def settle(one: Mux, other: Mux) -> tuple[list[MuxEvent], list[MuxEvent]]:
    """Passes frames to and fro until nothing moves; the events at `one` and at `other`."""
    at_one: list[MuxEvent] = []
    at_other: list[MuxEvent] = []
    while (there := frames_of(one)) or (back := frames_of(other)):
        back = frames_of(other) if there else back
        at_other += [event for frame in there if (event := other.receive(frame)) is not None]
        at_one += [event for frame in back if (event := one.receive(frame)) is not None]
    return at_one, at_other


def pair(window: int = WINDOW) -> tuple[Mux, Mux]:
    return Mux(opens_streams=True, window=window), Mux(opens_streams=False, window=window)


def opened(channel: str = "k/iopub", window: int = WINDOW) -> tuple[Mux, Mux, int]:
    server, worker = pair(window)
    stream = server.open(channel)
    assert settle(server, worker)[1] == [StreamOpened(stream, channel)]
    return server, worker, stream


def data_in(events: list[MuxEvent], stream: int) -> bytes:
    return b"".join(event.data for event in events if isinstance(event, DataReceived) and event.stream == stream)


def open_frame(stream: int, credit: int = WINDOW, channel: bytes = b"k/shell") -> Frame:
    return Frame(FrameType.OPEN, stream, struct.pack("!I", credit) + channel)


def window_frame(stream: int, grant: int) -> Frame:
    return Frame(FrameType.WINDOW, stream, struct.pack("!I", grant))


# What goes right.


def test_bytes_and_ends_pass_both_ways() -> None:
    server, worker, stream = opened()
    server.write(stream, b"question")
    worker.write(stream, b"answer")
    server.finish(stream)
    at_server, at_worker = settle(server, worker)
    assert at_worker == [DataReceived(stream, b"question"), StreamFinished(stream)]
    assert at_server == [DataReceived(stream, b"answer")]
    worker.write(stream, b", late")
    worker.finish(stream)
    assert settle(server, worker)[0] == [DataReceived(stream, b", late"), StreamFinished(stream)]
    assert not server.is_live(stream)
    assert not worker.is_live(stream)


def test_control_messages_pass_both_ways_as_they_were() -> None:
    server, worker = pair()
    server.send_control({"type": "signal", "signum": 2, "name": "ü"})
    worker.send_control({"type": "ended"})
    at_server, at_worker = settle(server, worker)
    assert at_worker == [ControlReceived({"type": "signal", "signum": 2, "name": "ü"})]
    assert at_server == [ControlReceived({"type": "ended"})]


def test_a_slow_reader_gets_one_window_and_not_a_byte_more_until_it_consumes() -> None:
    server, worker, stream = opened()
    server.write(stream, bytes(3 * WINDOW))
    assert len(data_in(settle(server, worker)[1], stream)) == WINDOW
    assert server.buffered(stream) == 2 * WINDOW
    worker.consume(stream, WINDOW // 4)
    assert len(data_in(settle(server, worker)[1], stream)) == WINDOW // 4


def test_credit_comes_back_by_the_quarter_and_not_byte_by_byte() -> None:
    server, worker, stream = opened()
    server.write(stream, bytes(WINDOW))
    settle(server, worker)
    for _ in range(WINDOW // 4 // 1024 - 1):
        worker.consume(stream, 1024)
    assert frames_of(worker) == []
    worker.consume(stream, 1024)
    assert [frame.type for frame in frames_of(worker)] == [FrameType.WINDOW]


def test_each_end_states_its_own_window() -> None:
    server, worker = Mux(opens_streams=True, window=1000), Mux(opens_streams=False, window=50)
    stream = server.open("k/shell")
    server.write(stream, bytes(5000))
    settle(server, worker)
    worker.write(stream, bytes(5000))
    settle(server, worker)
    assert (server.buffered(stream), worker.buffered(stream)) == (4950, 4000)


def test_one_blocked_stream_does_not_hold_up_another() -> None:
    server, worker, first = opened()
    second = server.open("k/iopub")
    server.write(first, bytes(10 * WINDOW))
    server.write(second, b"free")
    events = settle(server, worker)[1]
    assert data_in(events, second) == b"free"


def test_control_then_heartbeat_then_shell_then_iopub() -> None:
    server, worker = pair()
    streams = {server.open(f"k/{name}"): name for name in ("iopub", "stdin", "shell", "hb", "control")}
    settle(server, worker)
    for stream in streams:
        server.write(stream, b"x")
    server.send_control({"type": "signal"})
    order = [streams.get(frame.stream, "CTRL") for frame in frames_of(server)]
    assert order == ["CTRL", "hb", "control", "stdin", "shell", "iopub"]


def test_streams_of_one_class_take_turns_by_the_chunk() -> None:
    server, worker = pair()
    first, second = server.open("a/iopub"), server.open("b/iopub")
    settle(server, worker)
    server.write(first, bytes(3 * CHUNK))
    server.write(second, bytes(CHUNK + 1))
    turns = [(frame.stream, len(frame.payload)) for frame in frames_of(server)]
    assert turns == [(first, CHUNK), (second, CHUNK), (first, CHUNK), (second, 1), (first, CHUNK)]


def test_small_writes_travel_in_one_frame() -> None:
    server, _, stream = opened()
    for _ in range(100):
        server.write(stream, b"0123456789")
    (frame,) = frames_of(server)
    assert frame.payload == b"0123456789" * 100


def test_what_is_written_may_be_reused_by_its_writer() -> None:
    server, worker, stream = opened()
    data = bytearray(b"before")
    server.write(stream, data)
    data[:] = b"after!"
    assert data_in(settle(server, worker)[1], stream) == b"before"


def test_an_empty_write_sends_nothing() -> None:
    server, _, stream = opened()
    server.write(stream, b"")
    assert server.is_idle


# Resets.


def test_a_reset_drops_what_waits_and_is_confirmed() -> None:
    server, worker, stream = opened()
    server.write(stream, bytes(2 * WINDOW))
    worker.write(stream, b"on its way")
    late = frames_of(worker)
    server.reset(stream)
    assert server.is_idle is False
    assert settle(server, worker)[1] == [StreamReset(stream)]
    assert not worker.is_live(stream)
    assert not server.is_live(stream)
    assert late


def test_frames_that_cross_with_our_reset_are_tolerated_and_unseen() -> None:
    server, worker, stream = opened()
    worker.write(stream, b"late")
    worker.finish(stream)
    late = frames_of(worker)
    server.reset(stream)
    assert [server.receive(frame) for frame in late] == [None, None]
    assert settle(server, worker) == ([], [StreamReset(stream)])


def test_late_frames_on_a_reset_stream_still_respect_the_window() -> None:
    server, _, stream = opened(window=100)
    server.reset(stream)
    server.receive(Frame(FrameType.DATA, stream, bytes(100)))
    with pytest.raises(ProtocolError):
        server.receive(Frame(FrameType.DATA, stream, b"1"))


def test_both_ends_resetting_at_once_is_one_end() -> None:
    server, worker, stream = opened()
    server.reset(stream)
    worker.reset(stream)
    assert settle(server, worker) == ([], [])
    assert not server.is_live(stream)
    assert not worker.is_live(stream)


def test_a_stream_reset_before_its_open_went_out_still_begins_with_it() -> None:
    server, worker = pair()
    stream = server.open("k/shell")
    server.reset(stream)
    assert pass_on(server, worker) == [StreamOpened(stream, "k/shell"), StreamReset(stream)]


def test_writing_and_consuming_on_a_stream_that_the_peer_reset_is_nothing() -> None:
    server, worker, stream = opened()
    worker.reset(stream)
    settle(server, worker)
    server.write(stream, b"x")
    server.consume(stream, 10**9)
    server.finish(stream)
    server.reset(stream)
    assert server.is_idle


# A peer, or an owner, that breaks the rules.


@pytest.mark.parametrize(
    "frame",
    [
        Frame(FrameType.DATA, 2, b"x"),
        Frame(FrameType.FIN, 2, b""),
        Frame(FrameType.RESET, 2, b""),
        window_frame(2, 1),
        open_frame(1),
        open_frame(3),
        open_frame(2, credit=0),
        open_frame(2, credit=MAX_WINDOW + 1),
        open_frame(2, channel=b"\xff\xfe"),
        Frame(FrameType.DATA, 1, bytes(WINDOW + 1)),
        window_frame(1, 0),
        window_frame(1, MAX_WINDOW),
        Frame(FrameType.CTRL, 0, b"[]"),
        Frame(FrameType.CTRL, 0, b"{"),
        Frame(FrameType.CTRL, 0, b"\xff\xff"),
        Frame(FrameType.CTRL, 0, b'{"a":NaN}'),
        Frame(FrameType.CTRL, 0, b"[" * 200_000),
        Frame(FrameType.CTRL, 0, b'{"a":' + b"9" * 10_000 + b"}"),
    ],
    ids=lambda frame: f"{frame.type.name}-{frame.stream}-{len(frame.payload)}",
)
def test_what_the_tables_do_not_hold_is_refused_and_changes_nothing(frame: Frame) -> None:
    server, worker, stream = opened()
    with pytest.raises(ProtocolError):
        worker.receive(frame)
    assert worker.is_idle
    server.write(stream, bytes(WINDOW))
    worker.write(stream, b"still works")
    at_server, at_worker = settle(server, worker)
    assert len(data_in(at_worker, stream)) == WINDOW
    assert data_in(at_server, stream) == b"still works"


def test_only_the_end_that_opens_may_open() -> None:
    server, worker = pair()
    with pytest.raises(ProtocolError):
        server.receive(open_frame(1))
    with pytest.raises(ProtocolError):
        worker.open("k/shell")


def test_data_after_the_end_is_refused() -> None:
    _, worker, stream = opened()
    worker.receive(Frame(FrameType.FIN, stream, b""))
    for kind, payload in ((FrameType.DATA, b"x"), (FrameType.FIN, b"")):
        with pytest.raises(ProtocolError):
            worker.receive(Frame(kind, stream, payload))


def test_data_on_a_stream_that_is_over_is_refused_but_credit_that_crossed_is_not() -> None:
    server, worker, stream = opened()
    server.finish(stream)
    worker.finish(stream)
    settle(server, worker)
    assert worker.receive(window_frame(stream, 5)) is None
    assert worker.receive(Frame(FrameType.RESET, stream, b"")) is None
    with pytest.raises(ProtocolError):
        worker.receive(Frame(FrameType.DATA, stream, b"x"))


def test_more_streams_than_the_limit_are_refused() -> None:
    _, worker = pair()
    for stream in range(1, MAX_STREAMS + 1):
        worker.receive(open_frame(stream))
    with pytest.raises(ProtocolError):
        worker.receive(open_frame(MAX_STREAMS + 1))


def test_a_peer_that_makes_us_answer_and_never_reads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mux_module, "MAX_REPLIES", 100)
    _, worker = pair()
    for stream in range(1, 51):
        worker.receive(open_frame(stream))
        worker.receive(Frame(FrameType.RESET, stream, b""))
    with pytest.raises(ProtocolError, match="does not read"):
        worker.receive(open_frame(51))


def test_an_owner_cannot_write_after_finishing_nor_consume_what_never_came() -> None:
    server, _, stream = opened()
    server.finish(stream)
    with pytest.raises(ProtocolError):
        server.write(stream, b"x")
    with pytest.raises(ProtocolError):
        server.consume(stream, 1)


def test_a_control_message_over_the_bound_or_not_json_is_refused_where_it_is_sent() -> None:
    server, _ = pair()
    with pytest.raises(ValueError, match="at most"):
        server.send_control({"a": "x" * 1024 * 1024})
    with pytest.raises(ValueError, match="JSON"):
        server.send_control({"a": float("nan")})
    with pytest.raises(TypeError):
        server.send_control({"a": object()})
    assert server.is_idle


@pytest.mark.parametrize("size", [10, 1000, 100_000])
def test_control_messages_that_nobody_takes_are_bounded_and_the_sender_is_told(size: int) -> None:
    server, _ = pair()
    taken = 0
    while server.send_control({"a": "x" * size}):
        taken += 1
        assert taken <= MAX_WAITING_CONTROL
    assert taken * size <= MAX_WAITING_CONTROL_BYTES
    assert taken == MAX_WAITING_CONTROL or (taken + 1) * (size + 20) > MAX_WAITING_CONTROL_BYTES
    assert server.next_frame() is not None
    assert server.send_control({"a": "x" * size}), "room again for one"
    assert not server.send_control({"a": "x" * size})


def test_the_table_ends_every_stream() -> None:
    """From every state the peer's RESET leads to GONE, and nothing leads out of GONE."""
    for state in State:
        assert TRANSITIONS[state, Move.GOT_RESET] is State.GONE
    assert {after for (state, _), after in TRANSITIONS.items() if state is State.GONE} == {State.GONE}
