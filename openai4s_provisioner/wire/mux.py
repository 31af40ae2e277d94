"""Many byte streams and a control channel over one link: frames in, events out; wishes in, frames out.

Each direction of a stream has a credit window, stated by its receiver (the opener's in OPEN, the acceptor's in its
first WINDOW), so a slow reader holds up its own stream only, in bounded memory. Only one end opens streams, with
numbers that count up. What the peer may not do raises ProtocolError and changes nothing. The order of sending is
decided here: control messages, then streams by the class of their channel, round robin within a class.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from typing import Any, NamedTuple, Union

from .errors import ProtocolError
from .frames import MAX_CHANNEL_BYTES, MAX_PAYLOAD, Buffer, Frame, FrameType, encode
from .streams import CLASSES, Move, State, StreamHalves, after

WINDOW = 256 * 1024
MAX_WINDOW = 16 * 1024 * 1024
CHUNK = 64 * 1024
MAX_STREAMS = 1024
# Control messages of our own that may wait, with no link to send them on. An honest owner has a handful.
MAX_WAITING_CONTROL = 1024
MAX_WAITING_CONTROL_BYTES = 4 * MAX_PAYLOAD
# Answers that a peer may make us queue while it does not read; an honest one needs a few for each stream.
MAX_REPLIES = 16 * MAX_STREAMS

_U32 = struct.Struct("!I")

_MOVES = {
    FrameType.DATA: Move.GOT_DATA,
    FrameType.WINDOW: Move.GOT_WINDOW,
    FrameType.FIN: Move.GOT_FIN,
    FrameType.RESET: Move.GOT_RESET,
}


class StreamOpened(NamedTuple):
    stream: int
    channel: str


class DataReceived(NamedTuple):
    stream: int
    data: bytes


class StreamFinished(NamedTuple):
    """The peer sends no more on this stream."""

    stream: int


class StreamReset(NamedTuple):
    stream: int


class ControlReceived(NamedTuple):
    message: dict[str, Any]


MuxEvent = Union[StreamOpened, DataReceived, StreamFinished, StreamReset, ControlReceived]


class Mux:
    """Both ends of the tunnel run one; `opens_streams` says which of them opens."""

    def __init__(self, *, opens_streams: bool, window: int = WINDOW) -> None:
        if not 1 <= window <= MAX_WINDOW:
            raise ValueError(f"a window of {window} bytes: must be 1 to {MAX_WINDOW}")
        self._opens_streams = opens_streams
        self._window = window
        self._last_stream = 0
        self._streams: dict[int, StreamHalves] = {}
        self._prompt: deque[list[Buffer]] = deque()  # goes ahead of all DATA, in order
        self._replies = 0  # how many the peer made us queue since `_prompt` was last empty
        self._controls = 0  # messages of ours in `_prompt`, and their bytes
        self._control_bytes = 0
        self._rounds: tuple[deque[int], ...] = tuple(deque() for _ in range(CLASSES))
        self._progressed: set[int] = set()

    # What the owner wishes.

    def open(self, channel: str) -> int:
        if not self._opens_streams:
            raise ProtocolError("this end does not open streams")
        name = channel.encode()
        if not 1 <= len(name) <= MAX_CHANNEL_BYTES:
            raise ValueError(f"a channel name of {len(name)} bytes: must be 1 to {MAX_CHANNEL_BYTES}")
        if len(self._streams) >= MAX_STREAMS:
            raise ProtocolError(f"more than {MAX_STREAMS} streams")
        self._last_stream += 1
        self._streams[self._last_stream] = StreamHalves(channel, allowance=self._window)
        self._prompt.append(encode(FrameType.OPEN, self._last_stream, _U32.pack(self._window), name))
        return self._last_stream

    def write(self, stream_id: int, data: Buffer) -> None:
        """Accepts all of `data`. A stream that is over swallows it: the peer may have reset it a moment ago."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.state is State.RESETTING or not len(data):
            return
        if stream.finishing:
            raise ProtocolError(f"a write to stream {stream_id} after its end")
        stream.put(data)
        self._queue(stream_id, stream)

    def finish(self, stream_id: int) -> None:
        """FIN, once everything written before has gone out. Twice is once."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.finishing = True
            self._queue(stream_id, stream)

    def reset(self, stream_id: int) -> None:
        """Drops what waits and tells the peer. A stream that is over stays over."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.state is State.RESETTING:
            return
        stream.drop()
        self._enter(stream_id, stream, after(stream.state, Move.SEND_RESET, stream_id))
        self._prompt.append(encode(FrameType.RESET, stream_id))

    def consume(self, stream_id: int, size: int) -> None:
        """The owner is done with `size` received bytes; they go back as credit, a quarter of a window at a time."""
        stream = self._streams.get(stream_id)
        if stream is None or not stream.gives_credit:
            return
        if size < 0 or stream.allowance + stream.consumed + size > self._window:
            raise ProtocolError(f"{size} bytes of stream {stream_id} consumed that were never received")
        stream.consumed += size
        if stream.consumed * 4 >= self._window:
            self._prompt.append(encode(FrameType.WINDOW, stream_id, _U32.pack(stream.consumed)))
            stream.allowance += stream.consumed
            stream.consumed = 0

    def send_control(self, message: dict[str, Any]) -> bool:
        """False, and nothing happened, when too many wait already. Raises ValueError for one that is too large."""
        text = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
        if len(text) > MAX_PAYLOAD:
            raise ValueError(f"a control message of {len(text)} bytes: at most {MAX_PAYLOAD}")
        if self._controls >= MAX_WAITING_CONTROL or self._control_bytes + len(text) > MAX_WAITING_CONTROL_BYTES:
            return False
        self._controls += 1
        self._control_bytes += len(text)
        self._prompt.append(encode(FrameType.CTRL, 0, text))
        return True

    def buffered(self, stream_id: int) -> int:
        stream = self._streams.get(stream_id)
        return 0 if stream is None else stream.buffered

    def is_live(self, stream_id: int) -> bool:
        """Frames may still come or go on it."""
        return stream_id in self._streams

    @property
    def is_idle(self) -> bool:
        """Nothing waits to be sent, whether credit allows it or not."""
        return not self._prompt and not any(stream.has_something_to_send for stream in self._streams.values())

    # What goes out.

    def next_frame(self) -> list[Buffer] | None:
        """The buffers of the frame to send next; None when nothing may be sent now."""
        frame = self.next_prompt()
        if frame is not None:
            return frame
        for turn in self._rounds:
            while turn:
                found = self._frame_of(turn.popleft())
                if found is not None:
                    return found
        return None

    def next_prompt(self) -> list[Buffer] | None:
        """As `next_frame`, but only what goes ahead of all DATA."""
        if not self._prompt:
            return None
        frame = self._prompt.popleft()
        if frame[0][0] == FrameType.CTRL:
            self._controls -= 1
            self._control_bytes -= len(frame[1])
        if not self._prompt:
            self._replies = 0
        return frame

    def take_progressed(self) -> set[int]:
        """The streams that sent DATA or FIN since the last call."""
        progressed, self._progressed = self._progressed, set()
        return progressed

    def _frame_of(self, stream_id: int) -> list[Buffer] | None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return None
        stream.is_queued = False
        if not stream.can_send_now:
            return None
        if not stream.buffered:
            self._enter(stream_id, stream, after(stream.state, Move.SEND_FIN, stream_id))
            self._progressed.add(stream_id)
            return encode(FrameType.FIN, stream_id)
        frame = encode(FrameType.DATA, stream_id, *stream.take(CHUNK))
        self._progressed.add(stream_id)
        self._queue(stream_id, stream)
        return frame

    def _queue(self, stream_id: int, stream: StreamHalves) -> None:
        if stream.can_send_now and not stream.is_queued:
            stream.is_queued = True
            self._rounds[stream.send_class].append(stream_id)

    def _enter(self, stream_id: int, stream: StreamHalves, state: State) -> None:
        stream.state = state
        if state is State.GONE:
            del self._streams[stream_id]

    # What comes in.

    def receive(self, frame: Frame) -> MuxEvent | None:
        """What one OPEN, DATA, WINDOW, FIN, RESET or CTRL frame means for the owner, if anything."""
        if frame.type is FrameType.CTRL:
            return ControlReceived(_parse_control(frame.payload))
        if frame.type is FrameType.OPEN:
            return self._got_open(frame)
        stream = self._streams.get(frame.stream)
        if stream is None and frame.stream > self._last_stream:
            raise ProtocolError(f"{frame.type.name} on stream {frame.stream}, which was never opened")
        was = State.GONE if stream is None else stream.state
        state = after(was, _MOVES[frame.type], frame.stream)
        if stream is None:
            return None
        if frame.type is FrameType.DATA:
            return self._got_data(frame, stream)
        if frame.type is FrameType.WINDOW:
            self._got_window(frame, stream)
            return None
        self._enter(frame.stream, stream, state)
        if was is State.RESETTING:
            return None
        if frame.type is FrameType.FIN:
            return StreamFinished(frame.stream)
        self._reply(encode(FrameType.RESET, frame.stream))
        return StreamReset(frame.stream)

    def _got_open(self, frame: Frame) -> MuxEvent:
        (credit,) = _U32.unpack_from(frame.payload)
        if self._opens_streams:
            raise ProtocolError("the peer opens a stream, which is ours to do")
        if frame.stream != self._last_stream + 1:
            raise ProtocolError(f"the peer opens stream {frame.stream} after stream {self._last_stream}")
        if len(self._streams) >= MAX_STREAMS:
            raise ProtocolError(f"the peer opens more than {MAX_STREAMS} streams")
        if not 1 <= credit <= MAX_WINDOW:
            raise ProtocolError(f"the peer states a window of {credit} bytes")
        try:
            channel = frame.payload[4:].decode()
        except UnicodeDecodeError:
            raise ProtocolError("a channel name that is not UTF-8") from None
        self._reply(encode(FrameType.WINDOW, frame.stream, _U32.pack(self._window)))
        self._last_stream = frame.stream
        self._streams[frame.stream] = StreamHalves(channel, allowance=self._window, credit=credit)
        return StreamOpened(frame.stream, channel)

    def _got_data(self, frame: Frame, stream: StreamHalves) -> MuxEvent | None:
        size = len(frame.payload)
        if size > stream.allowance:
            raise ProtocolError(f"{size} bytes on stream {frame.stream}, whose window holds {stream.allowance}")
        stream.allowance -= size
        if stream.state is State.RESETTING:
            return None
        return DataReceived(frame.stream, frame.payload)

    def _got_window(self, frame: Frame, stream: StreamHalves) -> None:
        (grant,) = _U32.unpack(frame.payload)
        if not 1 <= grant <= MAX_WINDOW - stream.credit:
            raise ProtocolError(f"the peer grants {grant} bytes on top of {stream.credit}")
        stream.credit += grant
        self._queue(frame.stream, stream)

    def _reply(self, frame: list[Buffer]) -> None:
        if self._replies >= MAX_REPLIES:
            raise ProtocolError("the peer makes us answer and does not read the answers")
        self._replies += 1
        self._prompt.append(frame)


def _parse_control(payload: bytes) -> dict[str, Any]:
    try:
        message = json.loads(payload, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a control message that is not JSON ({type(error).__name__})") from None
    if not isinstance(message, dict):
        raise ProtocolError("a control message that is not an object")
    return message


def _refuse_constant(name: str) -> None:
    raise ValueError(name)
