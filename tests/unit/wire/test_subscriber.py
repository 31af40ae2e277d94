"""The subscribing end of ZMTP, against libzmq itself and against bytes that are not ZMTP; executions told from them."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from openai4s_provisioner.wire.errors import ProtocolError
from openai4s_provisioner.wire.executions import Executions
from openai4s_provisioner.wire.subscriber import (
    HELLO,
    MAX_PART_BYTES,
    MAX_PARTS,
    MessageReader,
    subscribe,
    unsubscribe,
)

from .test_zmtp import READY, frame, greeting, message

OPENING = greeting() + READY


def read(data: bytes, step: int) -> list[list[bytes]]:
    reader = MessageReader()
    return [each for at in range(0, len(data), step) for each in reader.feed(data[at : at + step])]


def test_libzmq_takes_our_handshake_and_our_subscriptions(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher, socket.socket(socket.AF_UNIX) as ours:
        publisher.linger = 0
        publisher.setsockopt(zmq.RCVTIMEO, 5000)
        publisher.bind(f"ipc://{path}")
        ours.settimeout(5)
        ours.connect(path)
        ours.sendall(HELLO)
        reader = MessageReader()
        while not reader.is_ready:
            assert reader.feed(ours.recv(4096)) == []
        for sent, seen in ((subscribe(b""), b"\x01"), (subscribe(b"a"), b"\x01a"), (unsubscribe(b""), b"\x00")):
            ours.sendall(sent)
            assert publisher.recv() == seen
        large = b"x" * 1_000_000
        publisher.send_multipart([b"b", b"not subscribed to"])
        publisher.send_multipart([b"a", b"", large, b"end"])
        found: list[list[bytes]] = []
        while not found:
            found += reader.feed(ours.recv(65536))
        assert found == [[b"a", b"", b"", b"end"]], "a part that is too large is passed over"


@pytest.mark.parametrize("step", [1, 2, 7, 64, 100_000])
def test_messages_come_out_whole_however_the_bytes_are_chopped(step: int) -> None:
    data = OPENING + message(b"a", b"b" * 300) + b"\x04\x05\x04PING" + message(b"") + message(*[b"p"] * 20)
    assert read(data, step) == [[b"a", b"b" * 300], [b""], [b"p"] * MAX_PARTS]


def test_what_is_kept_is_bounded() -> None:
    reader = MessageReader()
    reader.feed(OPENING)
    head = bytes([3]) + (1 << 40).to_bytes(8, "big")
    reader.feed(head)
    for _ in range(100):
        reader.feed(b"x" * 100_000)
    assert len(reader._body) == 0
    assert read(OPENING + frame(b"y" * (MAX_PART_BYTES + 1)) + frame(b"z" * MAX_PART_BYTES), 4096) == [
        [b""],
        [b"z" * MAX_PART_BYTES],
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        greeting(b"CURVE"),
        greeting(b"PLAIN"),
        greeting(major=2),
        greeting() + frame(b"a message before READY"),
        OPENING + b"\xff",
    ],
    ids=["http", "encrypted", "password", "old", "no handshake", "no frame"],
)
def test_what_cannot_be_read_is_refused(data: bytes) -> None:
    for step in (1, len(data)):
        with pytest.raises(ProtocolError):
            read(data, step)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=400), st.integers(1, 50))
def test_no_bytes_do_more_than_be_refused(data: bytes, step: int) -> None:
    for opening in (b"", OPENING):
        try:
            found = read(opening + data, step)
        except ProtocolError:
            continue
        for parts in found:
            Executions().heard(parts)


# -- executions --------------------------------------------------------------------------------------------------------


def published(kind: str, parent: object, content: object = None, topic: bytes = b"kernel.1.") -> list[bytes]:
    header = {"msg_id": "h", "msg_type": kind, "session": "s"}
    parts = [json.dumps(part).encode() for part in (header, parent, {}, content or {})]
    return [topic + kind.encode(), b"<IDS|MSG>", b"signature", *parts]


def request(number: int, kind: str = "execute_request") -> dict[str, str]:
    return {"msg_id": str(number), "msg_type": kind, "session": "s"}


BUSY, IDLE = {"execution_state": "busy"}, {"execution_state": "idle"}


def test_an_execution_lasts_from_its_input_to_its_idle() -> None:
    seen = Executions()
    seen.heard(published("status", request(1), BUSY))
    assert not seen.is_busy
    seen.heard(published("execute_input", request(1)))
    assert seen.is_busy
    assert seen.began
    seen.heard(published("status", request(2, "kernel_info_request"), IDLE))
    assert seen.is_busy, "another request's end is not this one's"
    seen.heard(published("status", request(1), IDLE))
    assert not seen.is_busy


@pytest.mark.parametrize("kind", ["kernel_info_request", "comm_msg", "complete_request", "shutdown_request", ""])
def test_no_other_request_is_an_execution(kind: str) -> None:
    seen = Executions()
    for said in (("status", BUSY), ("execute_input", {}), ("stream", {}), ("status", IDLE)):
        seen.heard(published(said[0], request(1, kind), said[1]))
        assert not seen.is_busy
    assert not seen.began


def test_a_silent_execution_is_none() -> None:
    seen = Executions()
    for content in (BUSY, IDLE):
        seen.heard(published("status", request(1), content))
    assert not seen.began


def test_executions_side_by_side_end_one_by_one() -> None:
    seen = Executions()
    for number in (1, 2):
        seen.heard(published("execute_input", request(number)))
    seen.heard(published("status", request(2), IDLE))
    assert seen.is_busy
    seen.heard(published("status", request(1), IDLE))
    assert not seen.is_busy


def test_topics_are_narrowed_only_when_they_are_known() -> None:
    seen = Executions()
    seen.heard(published("status", request(1), BUSY, b"one."))
    seen.heard(published("execute_input", request(1), topic=b"other."))
    assert not seen.narrow
    seen.heard(published("execute_input", request(1), topic=b"one."))
    assert seen.narrow == (b"one.execute_input", b"one.status")


def test_what_is_remembered_is_bounded() -> None:
    seen = Executions()
    for number in range(10_000):
        seen.heard(published("execute_input", request(number)))
    assert len(seen._running) == 256


@pytest.mark.parametrize("parent", [None, [], "x", {"msg_type": "execute_request"}, {"msg_type": ["x"]}])
def test_a_strange_parent_harms_nothing(parent: object) -> None:
    seen = Executions()
    for kind in ("execute_input", "status"):
        seen.heard(published(kind, parent, IDLE))
    seen.heard([b"<IDS|MSG>"])
    seen.heard([])
    started = time.monotonic()
    seen.heard(published("execute_input", request(1), "x" * 100))
    assert time.monotonic() - started < 5
