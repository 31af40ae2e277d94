"""The notice of lost output is a message that Jupyter's own library accepts, in the cell that it belongs to."""

from __future__ import annotations

from typing import Any

import pytest
from jupyter_client.session import Session

from openai4s_provisioner.wire.zmtp import MessageFinder, Verdict
from openai4s_provisioner.worker.notice import LossNotice

KEY = "7c0ffee"
LAUNCH = {"key": KEY, "signature_scheme": "hmac-sha256"}
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32) + b"\x04\x06\x05READY"


def frames_of(message: bytes) -> list[bytes]:
    """The parts of one ZMTP message; asserts that it is exactly one."""
    finder = MessageFinder()
    assert len(finder.feed(GREETING + message + b"\x00\x00")) == 2
    assert finder.verdict is Verdict.MESSAGES
    parts, at, more = [], 0, True
    while more:
        more, is_long = bool(message[at] & 1), bool(message[at] & 2)
        start = at + (9 if is_long else 2)
        end = start + int.from_bytes(message[at + 1 : start], "big")
        parts.append(message[start:end])
        at = end
    assert at == len(message)
    return parts


def zmtp(parts: list[bytes]) -> bytes:
    return b"".join(
        bytes([2 | (place < len(parts) - 1)]) + len(part).to_bytes(8, "big") + part for place, part in enumerate(parts)
    )


def read(message: bytes, session: Session) -> dict[str, Any]:
    return session.deserialize(session.feed_identities(frames_of(message))[1])


def test_it_is_signed_says_how_much_and_belongs_to_the_cell_of_what_follows() -> None:
    session = Session(key=KEY.encode())
    parent = session.msg("execute_request", {})
    following = session.serialize(session.msg("stream", {"name": "stdout", "text": "x" * 50_000}, parent=parent))
    made = LossNotice(LAUNCH)(1234, 56_789_000, zmtp([b"stream.stdout", *following])[:16_000])
    notice = read(made, session)
    assert notice["msg_type"] == "stream"
    assert notice["content"]["name"] == "stderr"
    assert "1234 messages (56.8 MB)" in notice["content"]["text"]
    assert notice["parent_header"]["msg_id"] == parent["header"]["msg_id"]


@pytest.mark.parametrize(
    "following",
    [b"", b"\x01", b"\x04\x05READY", zmtp([b"<IDS|MSG>"]), zmtp([b"<IDS|MSG>", b"", b"", b"not json"]), b"\xff" * 99],
)
def test_what_it_cannot_read_gives_a_notice_without_a_parent(following: bytes) -> None:
    assert read(LossNotice(LAUNCH)(1, 1, following), Session(key=KEY.encode()))["parent_header"] == {}


@pytest.mark.parametrize(
    "launch", [{}, {"key": "", "signature_scheme": "hmac-sha256"}, {"key": "k", "signature_scheme": "odd"}]
)
def test_where_messages_are_not_signed_it_is_not_either(launch: dict[str, str]) -> None:
    assert frames_of(LossNotice(launch)(1, 1, b""))[2] == b""
