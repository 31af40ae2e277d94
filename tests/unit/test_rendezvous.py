"""Who meets whom, by a clock that the test moves."""

from __future__ import annotations

from openai4s_provisioner.gateway.rendezvous import Arrival, Gathering, Place, Rendezvous

ORPHAN_S = 900.0


def arrival(rank: int, generation: str = "g", epoch: int = 1) -> Arrival:
    return Arrival(Place("a", epoch, rank), f"node{rank}", generation)


def waiting(rendezvous: Rendezvous, ranks: int, until: float, epoch: int = 1) -> list[Gathering]:
    answers: list[Gathering] = []
    rendezvous.wait("a", epoch, ranks, until, answers.append)
    return answers


def test_a_wait_is_answered_when_the_last_rank_arrives() -> None:
    rendezvous = Rendezvous(ORPHAN_S)
    answers = waiting(rendezvous, 2, until=60)
    rendezvous.arrive(arrival(1), now=1)
    assert answers == []
    rendezvous.arrive(arrival(0), now=2)
    assert answers == [Gathering("a", 1, 2, (arrival(0), arrival(1)))]
    assert answers[0].is_complete


def test_a_wait_for_those_who_came_already_is_answered_at_once() -> None:
    rendezvous = Rendezvous(ORPHAN_S)
    rendezvous.arrive(arrival(0), now=0)
    assert waiting(rendezvous, 1, until=60)[0].is_complete
    assert waiting(rendezvous, 1, until=60)[0].is_complete, "a second question gets the same answer"


def test_at_time_out_who_came_is_reported_and_stays_parked() -> None:
    rendezvous = Rendezvous(ORPHAN_S)
    rendezvous.arrive(arrival(0), now=0)
    answers = waiting(rendezvous, 2, until=60)
    rendezvous.expire(now=59)
    assert answers == []
    rendezvous.expire(now=60)
    assert answers == [Gathering("a", 1, 2, (arrival(0),))]
    rendezvous.arrive(arrival(1), now=61)
    assert waiting(rendezvous, 2, until=100)[0].is_complete


def test_a_time_out_restamps_those_it_reported() -> None:
    rendezvous = Rendezvous(ORPHAN_S)
    rendezvous.arrive(arrival(0), now=0)
    waiting(rendezvous, 2, until=800)
    rendezvous.expire(now=800)
    assert rendezvous.suspects(now=ORPHAN_S + 1) == []
    assert rendezvous.suspects(now=800 + ORPHAN_S) == [arrival(0)]


def test_a_redial_of_a_rank_replaces_it() -> None:
    rendezvous = Rendezvous(ORPHAN_S)
    rendezvous.arrive(arrival(0, "old"), now=0)
    rendezvous.arrive(arrival(0, "new"), now=1)
    assert waiting(rendezvous, 1, until=60)[0].present == (arrival(0, "new"),)


def test_a_worker_of_another_epoch_is_not_counted() -> None:
    rendezvous = Rendezvous(ORPHAN_S)
    answers = waiting(rendezvous, 1, until=60, epoch=2)
    rendezvous.arrive(arrival(0, epoch=1), now=0)
    assert answers == []


def test_a_rank_beyond_the_gang_completes_nothing() -> None:
    rendezvous = Rendezvous(ORPHAN_S)
    answers = waiting(rendezvous, 1, until=60)
    rendezvous.arrive(arrival(7), now=0)
    assert answers == []


def test_only_the_uncollected_become_suspects() -> None:
    rendezvous = Rendezvous(ORPHAN_S)
    rendezvous.arrive(arrival(0), now=0)
    waiting(rendezvous, 1, until=60)
    rendezvous.arrive(arrival(3, epoch=9), now=0)
    assert rendezvous.suspects(now=ORPHAN_S - 1) == []
    assert rendezvous.suspects(now=ORPHAN_S) == [arrival(3, epoch=9)]


def test_a_kept_suspect_has_its_time_again() -> None:
    rendezvous = Rendezvous(ORPHAN_S)
    rendezvous.arrive(arrival(0), now=0)
    rendezvous.keep(arrival(0), now=ORPHAN_S)
    assert rendezvous.suspects(now=2 * ORPHAN_S - 1) == []
    assert rendezvous.suspects(now=2 * ORPHAN_S) == [arrival(0)]


def test_a_verdict_on_an_earlier_connection_does_not_drop_the_newer_one() -> None:
    rendezvous = Rendezvous(ORPHAN_S)
    rendezvous.arrive(arrival(0, "old"), now=0)
    rendezvous.arrive(arrival(0, "new"), now=1)
    assert not rendezvous.drop(arrival(0, "old"))
    assert rendezvous.drop(arrival(0, "new"))


def test_a_worker_collected_while_its_fate_was_asked_stays() -> None:
    rendezvous = Rendezvous(ORPHAN_S)
    rendezvous.arrive(arrival(0), now=0)
    waiting(rendezvous, 1, until=60)
    assert not rendezvous.drop(arrival(0))


def test_who_left_is_not_reported() -> None:
    rendezvous = Rendezvous(ORPHAN_S)
    rendezvous.arrive(arrival(0), now=0)
    rendezvous.leave(Place("a", 1, 0))
    answers = waiting(rendezvous, 1, until=5)
    rendezvous.expire(now=5)
    assert answers[0].present == ()


def test_closing_answers_every_wait() -> None:
    rendezvous = Rendezvous(ORPHAN_S)
    rendezvous.arrive(arrival(0), now=0)
    answers = waiting(rendezvous, 2, until=60)
    rendezvous.close()
    assert [gathering.present for gathering in answers] == [(arrival(0),)]
