"""The tunnel's protocol under any chopping, any cut and any garbage: two real ends over a pretend wire."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from openai4s_provisioner.wire.connection import Acknowledged, Connection, Event
from openai4s_provisioner.wire.errors import ProtocolError
from openai4s_provisioner.wire.frames import Frame, FrameDecoder, FrameType, encode
from openai4s_provisioner.wire.mux import (
    ControlReceived,
    DataReceived,
    StreamFinished,
    StreamOpened,
    StreamReset,
)
from openai4s_provisioner.wire.zmtp import MessageFinder

WINDOW = 400
REPLAY = 1500
CHANNELS = ["k/shell", "k/iopub", "k/control", "k/hb", "k/stdin", "other"]
fuzz = settings(deadline=None, max_examples=300)


def bytes_of(connection: Connection, most: int) -> bytes:
    """What a socket with `most` bytes of room would take."""
    sent = b""
    while len(sent) < most:
        connection.fill(64)
        view = connection.outgoing.next_bytes()
        if not view:
            break
        part = bytes(view[: most - len(sent)])
        connection.outgoing.advance(len(part))
        sent += part
    return sent


def events_until_error(data: bytes, cuts: list[int]) -> tuple[list[Event], bool]:
    """The events of a fresh acceptor that is fed `data`, cut at `cuts`; DATA joined; whether it refused."""
    worker = Connection(opens_streams=False, window=WINDOW)
    events: list[Event] = []
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    try:
        for start, end in itertools.pairwise(places):
            events.extend(worker.receive(data[start:end]))
    except ProtocolError:
        return events, True
    return events, False


@st.composite
def conversations(draw: st.DrawFn) -> bytes:
    """What an opener might send: mostly sensible frames, sometimes any frame, sometimes garbage behind."""
    server = Connection(opens_streams=True, window=WINDOW)
    data = b""
    for _ in range(draw(st.integers(0, 12))):
        stream = draw(st.integers(1, 4))
        action = draw(st.sampled_from(["open", "write", "finish", "reset", "control", "ping", "frame"]))
        if action == "open":
            server.mux.open(draw(st.sampled_from(CHANNELS)))
        elif action == "write":
            try:
                server.mux.write(stream, draw(st.binary(max_size=200)))
            except ProtocolError:
                continue
        elif action == "finish":
            server.mux.finish(stream)
        elif action == "reset":
            server.mux.reset(stream)
        elif action == "control":
            server.mux.send_control({"n": draw(st.integers())})
        elif action == "ping":
            server.ping()
        else:
            kind = draw(st.sampled_from([FrameType.DATA, FrameType.FIN, FrameType.RESET]))
            payload = draw(st.binary(min_size=1, max_size=500)) if kind is FrameType.DATA else b""
            data += b"".join(encode(kind, stream, payload))
        data += bytes_of(server, 10**6)
    return data + draw(st.binary(max_size=30) | st.just(b""))


@fuzz
@given(data=conversations(), cuts=st.lists(st.integers(0, 10**6), max_size=30))
def test_any_chopping_gives_the_same_events_and_the_same_refusal(data: bytes, cuts: list[int]) -> None:
    assert events_until_error(data, cuts) == events_until_error(data, [])
    assert events_until_error(data, list(range(len(data)))) == events_until_error(data, [])


@fuzz
@given(data=st.lists(st.binary(max_size=40) | st.integers(1, 9).map(lambda kind: bytes([kind, 0, 0, 0])), max_size=20))
def test_garbage_is_refused_by_protocol_error_and_by_nothing_else(data: list[bytes]) -> None:
    events_until_error(b"".join(data), [])
    decoder = FrameDecoder()
    found: list[Frame] = []
    try:
        for piece in data:
            found.extend(decoder.feed(piece))
    except ProtocolError:
        pass


@fuzz
@given(
    data=st.lists(
        st.binary(max_size=80)
        | st.just(b"\xff" + bytes(7) + b"\x01\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32) + b"\4\6\5READY")
        | st.builds(lambda flags, body: bytes([flags, len(body)]) + body, st.integers(0, 7), st.binary(max_size=90)),
        max_size=12,
    ).map(b"".join),
    cuts=st.lists(st.integers(0, 10**6), max_size=30),
)
def test_message_boundaries_do_not_depend_on_chopping(data: bytes, cuts: list[int]) -> None:
    def find(places: list[int]) -> tuple[list[int], object]:
        finder = MessageFinder()
        edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
        pieces = itertools.pairwise(edges)
        return [start + at for start, end in pieces for at in finder.feed(data[start:end])], finder.verdict

    assert find(cuts) == find([])
    assert find(list(range(len(data)))) == find([])


class End:
    """One end of the tunnel, and everything that its owner saw."""

    def __init__(self, opens_streams: bool) -> None:
        self.connection = Connection(opens_streams=opens_streams, window=WINDOW, replay_limit=REPLAY, ack_every=200)
        self.written: dict[int, bytes] = defaultdict(bytes)
        self.got: dict[int, bytes] = defaultdict(bytes)
        self.unconsumed: dict[int, int] = defaultdict(int)
        self.finished: set[int] = set()
        self.got_end: set[int] = set()
        self.reset_by_us: set[int] = set()
        self.got_reset: set[int] = set()
        self.control: list[object] = []
        self.sent_control = 0
        self.wire = b""  # what we sent on the present socket and the peer has not read
        self.opened: list[str] = []

    def saw(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            assert event.stream not in self.got_end | self.got_reset | self.reset_by_us
            self.got[event.stream] += event.data
            self.unconsumed[event.stream] += len(event.data)
            assert self.unconsumed[event.stream] <= WINDOW
        elif isinstance(event, StreamFinished):
            assert event.stream not in self.got_end | self.reset_by_us
            self.got_end.add(event.stream)
        elif isinstance(event, StreamReset):
            assert event.stream not in self.got_reset | self.reset_by_us
            self.got_reset.add(event.stream)
        elif isinstance(event, StreamOpened):
            self.opened.append(event.channel)
        elif isinstance(event, ControlReceived):
            self.control.append(event.message["n"])
        else:
            assert isinstance(event, Acknowledged)

    def read(self, peer: End, size: int) -> bool:
        data, peer.wire = peer.wire[:size], peer.wire[size:]
        for event in self.connection.receive(data):
            self.saw(event)
        return bool(data)

    def send(self, size: int) -> bool:
        sent = bytes_of(self.connection, size)
        self.wire += sent
        return bool(sent)

    def consume(self, stream: int) -> None:
        self.connection.mux.consume(stream, self.unconsumed[stream])
        self.unconsumed[stream] = 0


class Tunnel(RuleBasedStateMachine):
    """Random wishes at both ends, random progress of the wire, random cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.server, self.worker = End(True), End(False)
        self.streams: list[int] = []
        self.random = random.Random(0)

    def end(self, is_server: bool) -> tuple[End, End]:
        return (self.server, self.worker) if is_server else (self.worker, self.server)

    def pick(self, end: End, number: int) -> int | None:
        known = self.streams if end is self.server else self.streams[: len(self.worker.opened)]
        return known[number % len(known)] if known else None

    @precondition(lambda self: len(self.streams) < 8)
    @rule(channel=st.sampled_from(CHANNELS))
    def open(self, channel: str) -> None:
        self.streams.append(self.server.connection.mux.open(channel))

    @rule(is_server=st.booleans(), number=st.integers(0, 7), data=st.binary(min_size=1, max_size=900))
    def write(self, is_server: bool, number: int, data: bytes) -> None:
        end, _ = self.end(is_server)
        stream = self.pick(end, number)
        if stream is not None and stream not in end.finished | end.reset_by_us | end.got_reset:
            end.connection.mux.write(stream, data)
            end.written[stream] += data

    @rule(is_server=st.booleans(), number=st.integers(0, 7), is_reset=st.booleans())
    def end_stream(self, is_server: bool, number: int, is_reset: bool) -> None:
        end, _ = self.end(is_server)
        stream = self.pick(end, number)
        if stream is None or stream in end.reset_by_us | end.got_reset:
            return
        if is_reset and end.connection.mux.is_live(stream):
            end.connection.mux.reset(stream)
            end.reset_by_us.add(stream)
        elif not is_reset:
            end.connection.mux.finish(stream)
            end.finished.add(stream)

    @rule(is_server=st.booleans())
    def control(self, is_server: bool) -> None:
        end, _ = self.end(is_server)
        end.connection.mux.send_control({"n": end.sent_control})
        end.sent_control += 1

    @rule(is_server=st.booleans(), number=st.integers(0, 7))
    def consume(self, is_server: bool, number: int) -> None:
        end, _ = self.end(is_server)
        stream = self.pick(end, number)
        if stream is not None:
            end.consume(stream)

    @rule(is_server=st.booleans(), size=st.integers(1, 700))
    def send(self, is_server: bool, size: int) -> None:
        self.end(is_server)[0].send(size)

    @rule(is_server=st.booleans(), size=st.integers(1, 700))
    def receive(self, is_server: bool, size: int) -> None:
        end, peer = self.end(is_server)
        end.read(peer, size)

    @rule(is_server=st.booleans())
    def ping(self, is_server: bool) -> None:
        self.end(is_server)[0].connection.ping()

    @rule()
    def cut(self) -> None:
        """What is under way is lost; both ends state what they have, and go on from there."""
        received = self.server.connection.received, self.worker.connection.received
        self.server.wire = self.worker.wire = b""
        self.server.connection.resume(received[1])
        self.worker.connection.resume(received[0])

    @invariant()
    def replay_is_bounded(self) -> None:
        for end in (self.server, self.worker):
            outgoing = end.connection.outgoing
            # one frame past the bound, plus the link's own few bytes
            assert outgoing.produced - outgoing.acknowledged <= REPLAY + 9 + 900 + 10 * 20

    def teardown(self) -> None:
        """Let everything drain: then every byte has arrived, in order, once."""
        moved = True
        while moved:
            moved = False
            for end, peer in ((self.server, self.worker), (self.worker, self.server)):
                for stream in self.streams:
                    end.consume(stream)
                moved |= end.send(500)
                moved |= peer.read(end, 400)
            if not moved:
                # a replay buffer may be full of less than one ACK's worth
                waiting = [end for end in (self.server, self.worker) if end.connection.outgoing.is_full]
                for end in waiting:
                    end.connection.ping()
                    moved |= end.send(500)
        for end, peer in ((self.server, self.worker), (self.worker, self.server)):
            assert peer.control == list(range(end.sent_control))
            for stream in self.streams:
                assert end.written[stream].startswith(peer.got[stream])
                if not {stream} & (end.reset_by_us | peer.reset_by_us):
                    assert peer.got[stream] == end.written[stream]
                    assert (stream in peer.got_end) == (stream in end.finished)
                if stream in end.reset_by_us:
                    assert stream in peer.got_reset | peer.reset_by_us or not peer.connection.mux.is_live(stream)
            assert end.connection.mux.is_idle
        live = [self.server.connection.mux.is_live(stream) for stream in self.streams]
        assert live == [self.worker.connection.mux.is_live(stream) for stream in self.streams]


TestTunnel = Tunnel.TestCase
TestTunnel.settings = settings(deadline=None, max_examples=150, stateful_step_count=60)
