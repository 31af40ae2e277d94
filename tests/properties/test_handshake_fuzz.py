"""Whatever a peer sends: no exception but ProtocolError leaves the tables, and nothing is accepted."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openai4s_provisioner.wire.errors import ProtocolError
from openai4s_provisioner.wire.handshake import (
    Hello,
    Resume,
    ResumeAsked,
    ResumeProven,
    ServerHandshake,
    Welcomed,
    WorkerHandshake,
)

KEY = bytes(range(32))
HELLO = Hello("o4s.credential", KEY, "node1", 42, "3.9.18")
RESUME = Resume("alloc-1", 0, 5, KEY)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
field_names = st.sampled_from(
    ("v", "credential", "resume_key", "host", "pid", "python", "resume", "proof", "nonce", "received", "ok")
)
lines = st.one_of(
    st.binary(max_size=300),
    st.dictionaries(field_names, json_values, max_size=6).map(lambda value: json.dumps(value).encode()),
).map(lambda line: line + b"\n")
pieces = st.lists(lines | st.binary(max_size=100), max_size=4)
fuzz = settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])


@fuzz
@given(pieces)
def test_a_server_is_never_persuaded_by_garbage(sent: list[bytes]) -> None:
    server = ServerHandshake()
    for data in sent:
        try:
            event = server.receive(data)
        except ProtocolError:
            continue
        assert not isinstance(event, ResumeProven)
        if isinstance(event, ResumeAsked):
            server.challenge(bytes(32), 0, KEY)


@fuzz
@given(pieces)
def test_a_challenged_peer_without_the_key_is_never_proven(sent: list[bytes]) -> None:
    server = ServerHandshake()
    server.receive(WorkerHandshake(RESUME).opening)
    server.challenge(bytes(32), 0, KEY)
    for data in sent:
        try:
            assert server.receive(data) is None
        except ProtocolError:
            continue


@fuzz
@given(st.sampled_from([HELLO, RESUME]), st.integers(min_value=0), st.binary(min_size=1, max_size=4))
def test_a_damaged_opening_is_refused_or_says_something_else(saying: Hello | Resume, place: int, damage: bytes) -> None:
    opening = bytearray(WorkerHandshake(saying).opening)
    place %= len(opening)
    opening[place : place + len(damage)] = damage
    server = ServerHandshake()
    try:
        event = server.receive(bytes(opening))
    except ProtocolError:
        return
    assert event is None or isinstance(event, (Hello, ResumeAsked))


@fuzz
@given(st.sampled_from([HELLO, RESUME]), pieces)
def test_a_worker_is_welcomed_only_by_a_whole_welcome(saying: Hello | Resume, sent: list[bytes]) -> None:
    worker = WorkerHandshake(saying)
    for data in sent:
        try:
            event = worker.receive(data)
        except ProtocolError:
            continue
        if isinstance(event, Welcomed):
            assert json.loads(data.split(b"\n")[0])["ok"] is True
            return
