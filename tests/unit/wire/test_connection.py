"""Both ends of the protocol as one object: acknowledging, pausing, pinging, resuming."""

from __future__ import annotations

from openai4s_provisioner.wire.connection import Acknowledged, Connection, Event
from openai4s_provisioner.wire.mux import ControlReceived, DataReceived, StreamOpened
from openai4s_provisioner.wire.resume import PROMPT_RESERVE

LIMIT = 100_000


def pair() -> tuple[Connection, Connection]:
    return (
        Connection(opens_streams=True, replay_limit=LIMIT, ack_every=30_000),
        Connection(opens_streams=False, replay_limit=LIMIT, ack_every=30_000),
    )


def take(sender: Connection) -> bytes:
    """Everything that may be sent now."""
    data = b""
    while True:
        sender.fill(10_000)
        view = sender.outgoing.next_bytes()
        if not view:
            return data
        data += view
        sender.outgoing.advance(len(view))


def test_sending_pauses_when_the_replay_buffer_is_full_and_goes_on_with_the_ack() -> None:
    server, worker = pair()
    server.mux.open("k/iopub")
    list(worker.receive(take(server)))
    list(server.receive(take(worker)))
    server.mux.write(1, bytes(250_000))
    sent = take(server)
    assert LIMIT <= len(sent) < LIMIT + 66_000
    assert take(server) == b""
    events = list(worker.receive(sent))
    assert all(isinstance(event, DataReceived) for event in events)
    assert any(isinstance(event, Acknowledged) for event in server.receive(take(worker)))
    assert any(isinstance(event, DataReceived) for event in worker.receive(take(server)))


def test_what_a_kernel_reports_does_not_wait_behind_a_full_replay_buffer_and_has_a_bound_itself() -> None:
    server, worker = pair()
    server.mux.open("k/iopub")
    list(worker.receive(take(server)))
    list(server.receive(take(worker)))
    server.mux.write(1, bytes(250_000))
    output = take(server)
    server.mux.send_control({"type": "kernel_exited"})
    report = take(server)
    assert report
    assert [type(event) for event in worker.receive(output + report)][-1] is ControlReceived
    while server.mux.send_control({"filler": "x" * 60_000}):
        pass
    assert 0 < len(take(server)) <= PROMPT_RESERVE + 61_000
    assert take(server) == b""


def test_two_ends_that_are_both_full_still_acknowledge_each_other() -> None:
    server, worker = pair()
    for end in (server, worker):
        for _ in range(3):
            end.mux.send_control({"filler": "x" * 60_000})
    sent = take(server), take(worker)
    assert server.outgoing.is_full
    assert worker.outgoing.is_full
    got: dict[str, list[Event]] = {"server": [], "worker": []}
    while any(sent):
        got["worker"] += worker.receive(sent[0])
        got["server"] += server.receive(sent[1])
        sent = take(server), take(worker)
    for events in got.values():
        assert sum(isinstance(event, ControlReceived) for event in events) == 3


def test_a_ping_is_answered_by_what_was_received_and_many_at_once_by_one_answer() -> None:
    server, worker = pair()
    server.mux.send_control({"a": 1})
    server.ping()
    server.ping()
    ping = take(server)
    assert server.outgoing.acknowledged == 0
    list(worker.receive(ping))
    answer = take(worker)
    assert list(server.receive(answer)) == [Acknowledged(len(ping))]
    assert server.outgoing.acknowledged == server.outgoing.produced
    list(worker.receive(b"\x06" + bytes(8)))
    list(worker.receive(b"\x06" + bytes(8)))
    assert len(take(worker)) == 9 + 8


def test_a_frame_that_was_cut_in_the_middle_goes_on_where_it_was() -> None:
    server, _ = pair()
    server.mux.open("k/shell")
    for place in range(len(take(server))):
        fresh_server, fresh_worker = pair()
        fresh_server.mux.open("k/shell")
        first = take(fresh_server)[:place]
        assert list(fresh_worker.receive(first)) == []
        fresh_server.resume(fresh_worker.received)
        assert list(fresh_worker.receive(take(fresh_server))) == [StreamOpened(1, "k/shell")]
