"""Offsets are absolute, what is not acknowledged is sent again, and impossible offsets change nothing."""

from __future__ import annotations

import pytest

from openai4s_provisioner.wire.errors import ProtocolError
from openai4s_provisioner.wire.resume import Incoming, Outgoing


def send(outgoing: Outgoing, size: int) -> bytes:
    """Hands up to `size` bytes to a pretend socket, which is offered whole segments."""
    sent = b""
    while len(sent) < size and (view := outgoing.next_bytes()):
        part = bytes(view[: size - len(sent)])
        outgoing.advance(len(part))
        sent += part
    return sent


def produced(*segments: bytes, limit: int = 100) -> Outgoing:
    outgoing = Outgoing(limit)
    for segment in segments:
        outgoing.append([segment])
    return outgoing


@pytest.mark.parametrize("cut", range(11))
@pytest.mark.parametrize("acknowledged", range(11))
def test_a_resume_goes_on_at_the_very_byte_the_peer_names(cut: int, acknowledged: int) -> None:
    outgoing = produced(b"0123", b"45", b"6789")
    send(outgoing, 10)
    outgoing.acknowledge(min(acknowledged, cut))
    outgoing.resume(cut)
    outgoing.append([b"ab"])
    assert send(outgoing, 100) == b"0123456789ab"[cut:]
    assert outgoing.sent == outgoing.produced == 12


def test_a_cut_within_a_segment_that_was_half_sent() -> None:
    outgoing = produced(b"0123456789")
    send(outgoing, 7)
    outgoing.acknowledge(3)
    outgoing.resume(5)
    assert send(outgoing, 100) == b"56789"


@pytest.mark.parametrize("offset", [0, 3, 8, 1000])
def test_resuming_at_an_offset_that_was_given_up_or_never_sent_is_refused_and_changes_nothing(offset: int) -> None:
    outgoing = produced(b"0123456", b"789")
    send(outgoing, 7)
    outgoing.acknowledge(4)
    with pytest.raises(ProtocolError):
        outgoing.resume(offset)
    assert (outgoing.acknowledged, outgoing.sent, outgoing.produced) == (4, 7, 10)
    assert send(outgoing, 100) == b"789"


def test_an_acknowledgement_of_what_was_never_sent_is_refused() -> None:
    outgoing = produced(b"0123456", b"789")
    send(outgoing, 7)
    with pytest.raises(ProtocolError):
        outgoing.acknowledge(8)
    assert outgoing.acknowledged == 0


@pytest.mark.parametrize("is_acknowledged_first", [False, True])
def test_a_layer_that_sent_more_than_it_has_admitted_is_believed(is_acknowledged_first: bool) -> None:
    """OpenSSL sends the first records of a write, then asks for the same write again: the peer is ahead of us."""
    outgoing = produced(b"0123456789", b"ab")
    send(outgoing, 2)
    assert bytes(outgoing.next_bytes()) == b"23456789"
    if is_acknowledged_first:
        outgoing.acknowledge(6)
        assert bytes(outgoing.next_bytes()) == b"23456789"
    outgoing.resume(8)
    assert send(outgoing, 100) == b"89ab"


def test_a_peer_that_has_all_that_was_offered_gets_what_comes_behind_it() -> None:
    outgoing = produced(b"0123456789", b"ab")
    outgoing.next_bytes()
    outgoing.resume(10)
    assert send(outgoing, 100) == b"ab"


def test_an_old_acknowledgement_that_was_replayed_is_no_news() -> None:
    outgoing = produced(b"0123456789")
    send(outgoing, 10)
    outgoing.acknowledge(9)
    outgoing.acknowledge(2)
    assert outgoing.acknowledged == 9


def test_it_is_full_at_its_bound_until_acknowledged() -> None:
    outgoing = produced(b"0" * 60, b"1" * 40)
    assert outgoing.is_full
    send(outgoing, 100)
    assert outgoing.is_full
    outgoing.acknowledge(1)
    assert not outgoing.is_full


def test_acknowledged_bytes_are_not_kept() -> None:
    outgoing = produced(*[b"x" * 10] * 10)
    send(outgoing, 100)
    outgoing.acknowledge(95)
    assert outgoing.acknowledged == 95
    outgoing.resume(95)
    assert send(outgoing, 100) == b"x" * 5


def test_an_acknowledgement_is_due_after_so_many_bytes_and_not_again_once_stated() -> None:
    incoming = Incoming(ack_every=10)
    incoming.count(9)
    assert not incoming.is_ack_due
    incoming.count(1)
    assert incoming.is_ack_due
    assert incoming.state() == 10
    assert not incoming.is_ack_due
