"""Who is here and wanted by nobody, by a clock that the test moves."""

from __future__ import annotations

from openai4s_provisioner.gateway.rendezvous import Arrival, Place, Rendezvous

ORPHAN_S = 900.0


def arrival(rank: int, generation: str = "g", epoch: int = 1) -> Arrival:
    return Arrival(Place("a", epoch, rank), f"node{rank}", generation)


def test_whoever_has_been_here_for_long_becomes_a_suspect() -> None:
    rendezvous = Rendezvous(ORPHAN_S)
    rendezvous.arrive(arrival(0), now=0)
    rendezvous.arrive(arrival(3, epoch=9), now=1)
    assert rendezvous.suspects(now=ORPHAN_S - 1) == []
    assert rendezvous.suspects(now=ORPHAN_S) == [arrival(0)]
    assert rendezvous.suspects(now=ORPHAN_S + 1) == [arrival(0), arrival(3, epoch=9)]


def test_a_redial_of_a_rank_replaces_it_and_its_time_begins_anew() -> None:
    rendezvous = Rendezvous(ORPHAN_S)
    rendezvous.arrive(arrival(0, "old"), now=0)
    rendezvous.arrive(arrival(0, "new"), now=1)
    assert rendezvous.suspects(now=ORPHAN_S) == []
    assert rendezvous.suspects(now=ORPHAN_S + 1) == [arrival(0, "new")]


def test_a_kept_suspect_has_its_time_again() -> None:
    rendezvous = Rendezvous(ORPHAN_S)
    rendezvous.arrive(arrival(0), now=0)
    rendezvous.keep(arrival(0), now=ORPHAN_S)
    assert rendezvous.suspects(now=2 * ORPHAN_S - 1) == []
    assert rendezvous.suspects(now=2 * ORPHAN_S) == [arrival(0)]


def test_a_verdict_on_an_earlier_connection_says_nothing_about_the_newer_one() -> None:
    rendezvous = Rendezvous(ORPHAN_S)
    rendezvous.arrive(arrival(0, "old"), now=0)
    rendezvous.arrive(arrival(0, "new"), now=1)
    rendezvous.keep(arrival(0, "old"), now=500)
    assert rendezvous.suspects(now=ORPHAN_S + 1) == [arrival(0, "new")]
    assert not rendezvous.drop(arrival(0, "old"))
    assert rendezvous.drop(arrival(0, "new"))
    assert not rendezvous.drop(arrival(0, "new"))


def test_who_left_is_no_suspect_and_cannot_be_dropped() -> None:
    rendezvous = Rendezvous(ORPHAN_S)
    rendezvous.arrive(arrival(0), now=0)
    rendezvous.leave(Place("a", 1, 0))
    rendezvous.leave(Place("a", 1, 0))
    assert rendezvous.suspects(now=10 * ORPHAN_S) == []
    assert not rendezvous.drop(arrival(0))


def test_closing_forgets_everybody() -> None:
    rendezvous = Rendezvous(ORPHAN_S)
    rendezvous.arrive(arrival(0), now=0)
    rendezvous.close()
    assert rendezvous.suspects(now=10 * ORPHAN_S) == []
