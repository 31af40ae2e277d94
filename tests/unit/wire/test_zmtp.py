"""Message boundaries of a ZMTP 3 stream, and the verdict for everything that is not one."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import zmq

from openai4s_provisioner.wire.zmtp import MAX_HANDSHAKE, MessageFinder, Verdict

READY = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"


def greeting(mechanism: bytes = b"NULL", major: int = 3) -> bytes:
    return b"\xff" + bytes(7) + b"\x01\x7f" + bytes([major, 1]) + mechanism.ljust(20, b"\0") + bytes(32)


def frame(body: bytes, more: bool = False, long: bool = False) -> bytes:
    if long or len(body) > 255:
        return bytes([2 | more]) + len(body).to_bytes(8, "big") + body
    return bytes([more, len(body)]) + body


def message(*parts: bytes) -> bytes:
    return b"".join(frame(part, more=at < len(parts) - 1) for at, part in enumerate(parts))


def find(data: bytes, step: int | None = None) -> tuple[list[int], Verdict]:
    finder = MessageFinder()
    step = step or max(1, len(data))
    starts = [at + start for at in range(0, len(data), step) for start in finder.feed(data[at : at + step])]
    return starts, finder.verdict


@pytest.mark.parametrize("step", [None, 1, 3, 64])
def test_messages_begin_after_the_handshake_and_after_the_last_part_of_the_one_before(step: int | None) -> None:
    messages = [message(b"a"), message(b"topic", b"", b"x" * 300), message(b""), message(b"y" * 70000)]
    data = greeting() + READY
    expected = []
    for each in messages:
        expected.append(len(data))
        data += each
    assert find(data, step) == (expected, Verdict.MESSAGES)


def test_a_command_between_messages_begins_none() -> None:
    head = greeting() + READY
    ping = b"\x04\x07\x04PING\0\0"
    data = head + message(b"a") + ping + message(b"b")
    assert find(data)[0] == [len(head), len(head) + len(message(b"a") + ping)]


def test_plain_has_two_commands_before_its_first_message() -> None:
    data = greeting(b"PLAIN") + b"\x04\x08\x07WELCOME" + READY
    assert find(data + message(b"a")) == ([len(data)], Verdict.MESSAGES)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x00" * 64,
        greeting(major=2) + READY,
        greeting(b"CURVE") + READY,
        greeting(b"GSSAPI") + READY,
        greeting(b"") + READY,
        greeting() + message(b"before the handshake"),
        greeting() + READY + b"\x08\x00",
        greeting() + READY + b"\x05\x00",
        greeting() + READY + b"\xff",
        greeting() + READY + frame(b"a", more=True) + READY,
        greeting() + READY + b"\x02" + b"\xff" * 8,
        greeting() + b"\x06" + (MAX_HANDSHAKE + 1).to_bytes(8, "big"),
    ],
)
@pytest.mark.parametrize("step", [None, 1])
def test_what_is_not_readable_is_a_verdict_and_not_an_error(data: bytes, step: int | None) -> None:
    starts, verdict = find(data, step)
    assert verdict is Verdict.OPAQUE
    finder = MessageFinder()
    finder.feed(data)
    assert finder.feed(b"anything") == []
    assert starts == find(data)[0]


def test_a_greeting_that_is_not_complete_is_undecided() -> None:
    assert find(greeting()[:63]) == ([], Verdict.UNDECIDED)


def test_a_body_is_never_stored() -> None:
    finder = MessageFinder()
    finder.feed(greeting() + READY + b"\x02" + (1 << 40).to_bytes(8, "big"))
    chunk = bytes(1 << 16)
    for _ in range(1000):
        assert finder.feed(chunk) == []
    kept = sum(len(value) for value in vars(finder).values() if isinstance(value, bytearray))
    assert kept <= 64


def read_exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += sock.recv(size - len(data))
    return data


def test_what_libzmq_really_sends_is_understood(tmp_path: Path) -> None:
    """A real PUB socket, read by a plain socket that speaks just enough ZMTP to be served."""
    address = str(tmp_path / "s")
    context = zmq.Context()
    publisher = context.socket(zmq.XPUB)
    raw = socket.socket(socket.AF_UNIX)
    raw.settimeout(10)
    try:
        publisher.bind(f"ipc://{address}")
        raw.connect(address)
        raw.sendall(greeting() + READY.replace(b"PUB", b"SUB"))
        finder, count = MessageFinder(), 0
        finder.feed(read_exactly(raw, 64 + 28))  # its greeting and READY; a message before those would be refused
        raw.sendall(frame(b"\x01"))
        assert publisher.poll(10_000)
        assert publisher.recv() == b"\x01"
        for number in range(50):
            publisher.send_multipart([b"topic", b"x" * 100 * number, b""])
        while count < 50:
            count += len(finder.feed(raw.recv(1000)))
        assert finder.verdict is Verdict.MESSAGES
    finally:
        raw.close()
        publisher.close(0)
        context.term()
