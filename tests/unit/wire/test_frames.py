"""The frame decoder is strict, and says no before it stores anything."""

from __future__ import annotations

import struct

import pytest

from openai4s_provisioner.wire.errors import ProtocolError
from openai4s_provisioner.wire.frames import MAX_PAYLOAD, SHAPES, Frame, FrameDecoder, FrameType, encode


def raw(kind: int, stream: int, payload: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("!BII", kind, stream, len(payload) if length is None else length) + payload


def smallest(kind: FrameType) -> Frame:
    shape = SHAPES[kind]
    return Frame(kind, 7 if shape.on_stream else 0, b"\1" * shape.shortest)


@pytest.mark.parametrize("kind", FrameType)
@pytest.mark.parametrize("step", [1, 2, 9, 10, 1000])
def test_every_type_comes_back_as_it_went_however_it_is_chopped(kind: FrameType, step: int) -> None:
    frame = smallest(kind)
    data = b"".join(encode(*frame)) * 3
    decoder = FrameDecoder()
    found = [out for at in range(0, len(data), step) for out in decoder.feed(data[at : at + step])]
    assert found == [frame] * 3


def test_an_encoded_frame_may_have_its_payload_in_parts() -> None:
    (frame,) = FrameDecoder().feed(b"".join(encode(FrameType.DATA, 3, b"ab", memoryview(b"cd"), bytearray(b"e"))))
    assert frame == Frame(FrameType.DATA, 3, b"abcde")


@pytest.mark.parametrize("kind", FrameType)
def test_a_payload_out_of_the_bounds_of_its_type_is_refused_by_its_header_alone(kind: FrameType) -> None:
    shape = SHAPES[kind]
    stream = 1 if shape.on_stream else 0
    wrong = [shape.longest + 1, 0xFFFFFFFF] + ([shape.shortest - 1] if shape.shortest else [])
    for length in wrong:
        with pytest.raises(ProtocolError):
            list(FrameDecoder().feed(raw(kind, stream, length=length)))


@pytest.mark.parametrize("kind", FrameType)
def test_a_stream_number_where_none_belongs_or_none_where_one_does_is_refused(kind: FrameType) -> None:
    frame = smallest(kind)
    with pytest.raises(ProtocolError):
        list(FrameDecoder().feed(raw(kind, 0 if frame.stream else 1, frame.payload)))


@pytest.mark.parametrize("kind", [0, 10, 255])
def test_an_unknown_type_is_refused(kind: int) -> None:
    with pytest.raises(ProtocolError, match="unknown frame type"):
        list(FrameDecoder().feed(raw(kind, 1)))


def test_the_frames_before_a_bad_one_come_out_and_nothing_after_it() -> None:
    decoder = FrameDecoder()
    frames = decoder.feed(raw(FrameType.PING, 0) + raw(99, 0) + raw(FrameType.PING, 0))
    assert next(frames).type is FrameType.PING
    with pytest.raises(ProtocolError):
        next(frames)
    with pytest.raises(ProtocolError):
        list(decoder.feed(raw(FrameType.PING, 0)))


def test_the_largest_payload_passes_and_a_byte_more_does_not() -> None:
    (frame,) = FrameDecoder().feed(b"".join(encode(FrameType.DATA, 1, bytes(MAX_PAYLOAD))))
    assert len(frame.payload) == MAX_PAYLOAD
    with pytest.raises(ProtocolError):
        encode(FrameType.DATA, 1, bytes(MAX_PAYLOAD + 1))
