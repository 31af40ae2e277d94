"""The handshake's two tables, over a pretend wire."""

from __future__ import annotations

import json

import pytest

from openai4s_provisioner.wire.errors import ProtocolError
from openai4s_provisioner.wire.handshake import (
    Hello,
    ProofWanted,
    Resume,
    ResumeAsked,
    ResumeProven,
    ServerHandshake,
    Welcomed,
    WorkerHandshake,
    WrongProof,
)
from openai4s_provisioner.wire.handshake_lines import LineTooLong, resume_proof

KEY = bytes(range(32))
NONCE = bytes(32)
HELLO = Hello("o4s.credential", KEY, "node1", 42, "3.9.18")
RESUME = Resume("alloc-1", 2, 1000, KEY)


def resumed_as_far_as_the_proof(server: ServerHandshake, key: bytes = KEY) -> bytes:
    worker = WorkerHandshake(RESUME)
    assert server.receive(worker.opening) == ResumeAsked("alloc-1", 2, 1000)
    event = worker.receive(server.challenge(NONCE, 77, key))
    assert isinstance(event, ProofWanted)
    return event.answer


def test_a_credential_arrives_whole_and_its_answer_carries_the_generation() -> None:
    worker, server = WorkerHandshake(HELLO), ServerHandshake()
    assert server.receive(worker.opening) == HELLO
    assert worker.receive(server.accept("gen-1")) == Welcomed("gen-1", 0, b"")


def test_a_line_may_come_in_pieces_of_one_byte() -> None:
    worker, server = WorkerHandshake(HELLO), ServerHandshake()
    events = [server.receive(bytes([byte])) for byte in worker.opening]
    assert events[:-1] == [None] * (len(worker.opening) - 1)
    assert events[-1] == HELLO


def test_a_resume_is_proven_and_each_end_learns_the_others_count() -> None:
    worker, server = WorkerHandshake(RESUME), ServerHandshake()
    server.receive(worker.opening)
    proof = worker.receive(server.challenge(NONCE, 77, KEY))
    assert isinstance(proof, ProofWanted)
    assert server.receive(proof.answer) == ResumeProven(ResumeAsked("alloc-1", 2, 1000))
    assert worker.receive(server.accept("gen-2")) == Welcomed("gen-2", 77, b"")


def test_link_bytes_that_follow_the_welcome_are_handed_over() -> None:
    worker, server = WorkerHandshake(HELLO), ServerHandshake()
    server.receive(worker.opening)
    event = worker.receive(server.accept("gen") + b"\x01frame\n")
    assert isinstance(event, Welcomed)
    assert event.leftover == b"\x01frame\n"


def test_a_proof_with_another_key_is_refused_and_cannot_be_tried_twice() -> None:
    server = ServerHandshake()
    answer = resumed_as_far_as_the_proof(server, key=bytes(32))
    with pytest.raises(WrongProof):
        server.receive(answer)
    with pytest.raises(ProtocolError):
        server.receive(answer)
    with pytest.raises(ProtocolError):
        server.accept("gen")


def test_a_proof_is_worth_nothing_on_another_connection() -> None:
    answer = resumed_as_far_as_the_proof(ServerHandshake())
    other = ServerHandshake()
    other.receive(WorkerHandshake(RESUME).opening)
    other.challenge(bytes([1]) * 32, 77, KEY)
    with pytest.raises(WrongProof):
        other.receive(answer)


@pytest.mark.parametrize(
    "claim",
    [("alloc-2", 2, 1000, 77), ("alloc-1", 3, 1000, 77), ("alloc-1", 2, 1001, 77), ("alloc-1", 2, 1000, 78)],
)
def test_every_part_of_the_claim_is_in_the_proof(claim: tuple[str, int, int, int]) -> None:
    assert resume_proof(KEY, NONCE, *claim) != resume_proof(KEY, NONCE, "alloc-1", 2, 1000, 77)


def test_a_line_without_an_end_is_refused_at_the_limit() -> None:
    server = ServerHandshake(line_bytes=1000)
    assert server.receive(b"x" * 999) is None
    with pytest.raises(LineTooLong):
        server.receive(b"x")


def test_a_peer_that_does_not_wait_for_the_answer_is_refused() -> None:
    with pytest.raises(ProtocolError):
        ServerHandshake().receive(WorkerHandshake(HELLO).opening + b"{")
    server = ServerHandshake()
    server.receive(WorkerHandshake(HELLO).opening)
    with pytest.raises(ProtocolError):
        server.receive(b"early")


def test_a_proof_that_nobody_asked_for_is_refused() -> None:
    answer = resumed_as_far_as_the_proof(ServerHandshake())
    with pytest.raises(ProtocolError):
        ServerHandshake().receive(answer)


def test_a_challenge_after_a_hello_is_refused() -> None:
    server = ServerHandshake()
    server.receive(WorkerHandshake(RESUME).opening)
    challenge = server.challenge(NONCE, 0, KEY)
    with pytest.raises(ProtocolError):
        WorkerHandshake(HELLO).receive(challenge)


def test_nothing_can_be_accepted_before_a_credential_or_a_proof() -> None:
    with pytest.raises(ProtocolError):
        ServerHandshake().accept("gen")
    server = ServerHandshake()
    server.receive(WorkerHandshake(RESUME).opening)
    with pytest.raises(ProtocolError):
        server.accept("gen")
    server.challenge(NONCE, 0, KEY)
    with pytest.raises(ProtocolError):
        server.accept("gen")


GOOD = json.loads(WorkerHandshake(HELLO).opening)


@pytest.mark.parametrize(
    "line",
    [
        {**GOOD, "v": 2},
        {**GOOD, "v": True},
        {**GOOD, "credential": ""},
        {**GOOD, "credential": "with space"},
        {**GOOD, "credential": "\ud800"},
        {**GOOD, "resume_key": "AAAA"},
        {**GOOD, "resume_key": GOOD["resume_key"] + "\n"},
        {**GOOD, "pid": -1},
        {**GOOD, "pid": 1.0},
        {**GOOD, "pid": 2**64},
        {**GOOD, "host": None},
        {**GOOD, "extra": 1},
        {name: value for name, value in GOOD.items() if name != "python"},
        {"v": 1, "resume": {"allocation_id": "a/b", "rank": 0, "received": 0}},
        {"v": 1, "resume": {"allocation_id": "a", "rank": 0}},
        {"v": 1, "resume": []},
        {},
        [],
        None,
        "text",
    ],
)
def test_a_field_of_another_kind_is_refused(line: object) -> None:
    with pytest.raises(ProtocolError):
        ServerHandshake().receive(json.dumps(line).encode() + b"\n")


@pytest.mark.parametrize("line", [b"[" * 60000, b'{"a":' * 10000, b"\xff\xfe", b"1" * 60000, b"NaN", b""])
def test_what_is_hard_to_parse_is_refused_like_the_rest(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        ServerHandshake().receive(line + b"\n")


def test_secrets_do_not_show_in_a_representation() -> None:
    shown = repr(HELLO) + repr(RESUME)
    assert "credential" not in shown.replace("allocation", "")
    assert repr(KEY) not in shown
