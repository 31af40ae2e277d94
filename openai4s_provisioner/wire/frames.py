"""The frames of the tunnel: one table of types, a strict decoder, an encoder. Bytes in, frames out.

A frame is a type (u8), a stream (u32), a length (u32) and that many bytes. What the table does not hold (a type,
a length, a stream number where none belongs) raises ProtocolError before any of its payload is stored, so a
hostile peer can make us hold one bounded frame and no more. No socket, no clock, no meaning: that is the mux's.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import NamedTuple, Union

from .errors import ProtocolError

MAX_PAYLOAD = 1024 * 1024
MAX_CHANNEL_BYTES = 256

_HEADER = struct.Struct("!BII")
HEADER_SIZE = _HEADER.size

Buffer = Union[bytes, bytearray, memoryview]


class FrameType(enum.IntEnum):
    """What a frame is for. The numbers are the wire's and never change their meaning."""

    OPEN = 1
    DATA = 2
    WINDOW = 3
    FIN = 4
    RESET = 5
    PING = 6
    PONG = 7
    ACK = 8
    CTRL = 9


class Shape(NamedTuple):
    """What a frame of one type may look like: payload bounds in bytes, and whether it belongs to a stream."""

    shortest: int
    longest: int
    on_stream: bool


SHAPES: dict[int, Shape] = {
    FrameType.OPEN: Shape(4 + 1, 4 + MAX_CHANNEL_BYTES, True),
    FrameType.DATA: Shape(1, MAX_PAYLOAD, True),
    FrameType.WINDOW: Shape(4, 4, True),
    FrameType.FIN: Shape(0, 0, True),
    FrameType.RESET: Shape(0, 0, True),
    FrameType.PING: Shape(0, 0, False),
    FrameType.PONG: Shape(8, 8, False),
    FrameType.ACK: Shape(8, 8, False),
    FrameType.CTRL: Shape(2, MAX_PAYLOAD, False),
}


class Frame(NamedTuple):
    type: FrameType
    stream: int
    payload: bytes


def encode(kind: FrameType, stream: int, *parts: Buffer) -> list[Buffer]:
    """The buffers of one frame, header first, not joined: whoever sends joins many frames at once."""
    length = sum(map(len, parts))
    _check(kind, stream, length)
    return [_HEADER.pack(kind, stream, length), *parts]


def _check(kind: int, stream: int, length: int) -> None:
    shape = SHAPES.get(kind)
    if shape is None:
        raise ProtocolError(f"unknown frame type {kind}")
    if not shape.shortest <= length <= shape.longest:
        raise ProtocolError(f"a {FrameType(kind).name} frame of {length} bytes")
    if shape.on_stream != (stream != 0):
        raise ProtocolError(f"a {FrameType(kind).name} frame on stream {stream}")


class FrameDecoder:
    """Cuts a byte stream into frames, however it is chopped.

    `feed` is a generator: the frames before a bad one come out, then ProtocolError. After that every call raises.
    """

    def __init__(self) -> None:
        self._partial = bytearray()
        self._failure: str | None = None

    def feed(self, data: Buffer) -> Iterator[Frame]:
        if self._failure is not None:
            raise ProtocolError(self._failure)
        view = memoryview(data)
        while True:
            taken, frame = self._take(view)
            if frame is None:
                self._partial += view[taken:]
                return
            view = view[taken:]
            yield frame

    def _take(self, view: memoryview) -> tuple[int, Frame | None]:
        """One frame and how much of `view` it used; (0 or what completed the header, None) when more is needed."""
        used = 0
        if self._partial:
            used = self._complete(view, HEADER_SIZE)
            head: Buffer = self._partial
        else:
            head = view
        if len(head) < HEADER_SIZE:
            return used, None
        kind, stream, length = self._header(head)
        if head is view:
            end = HEADER_SIZE + length
            return (0, None) if len(view) < end else (end, Frame(kind, stream, bytes(view[HEADER_SIZE:end])))
        used += self._complete(view[used:], HEADER_SIZE + length)
        if len(self._partial) < HEADER_SIZE + length:
            return used, None
        payload = bytes(memoryview(self._partial)[HEADER_SIZE:])
        self._partial = bytearray()
        return used, Frame(kind, stream, payload)

    def _complete(self, view: memoryview, size: int) -> int:
        """Grows the partial frame towards `size` bytes out of `view`; how many bytes it took."""
        wanted = max(0, min(size - len(self._partial), len(view)))
        self._partial += view[:wanted]
        return wanted

    def _header(self, head: Buffer) -> tuple[FrameType, int, int]:
        kind, stream, length = _HEADER.unpack_from(head)
        try:
            _check(kind, stream, length)
        except ProtocolError as error:
            self._failure = str(error)
            self._partial = bytearray()
            raise
        return FrameType(kind), stream, length
