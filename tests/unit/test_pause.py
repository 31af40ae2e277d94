"""How long something that waits is left alone: a table for people, and bounds that hold whatever a backend expects."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai4s_provisioner.orchestration.config import Policy
from openai4s_provisioner.orchestration.models import (
    Allocation,
    Desired,
    ExternalHandle,
    Kind,
    Phase,
    SessionSpec,
    Workload,
)
from openai4s_provisioner.orchestration.pace import pause_s
from openai4s_provisioner.orchestration.store import Situation
from openai4s_provisioner.orchestration.waiting import waiting_pause_s

QUICK, SLOW = 5.0, 30.0
POLICY = Policy(period_s=QUICK, steady_period_s=SLOW)
MINUTE, HOUR = 60.0, 3600.0
AN_HOUR_COSTS_AT_MOST = 200
SPEC = SessionSpec(workspace="/w", cwd="/w", kernel_name="python3")
QUEUED = Situation(
    workload=Workload("w", Kind.SESSION, "me", "gpu", Desired.RUNNING, Phase.PENDING, 1, SPEC, 0.0),
    allocation=Allocation("a", "w", 1, "t" * 32, "fake", Phase.PENDING, 0.0, handle=ExternalHandle("fake", "1")),
    workers=(),
    bindings=(),
    launches=(),
)


def queued(**changes: object) -> Situation:
    return replace(QUEUED, allocation=replace(QUEUED.allocation, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("waited_s", "starts_in_s", "pause"),
    [
        (0, None, QUICK),  # free machines take it now
        (49, None, QUICK),
        (2 * MINUTE, None, 12),
        (10 * MINUTE, None, SLOW),
        (7 * 24 * HOUR, None, SLOW),
        (20, 2 * HOUR, SLOW),  # nothing happens before
        (20, 4 * MINUTE, 12),
        (4 * MINUTE, 10, 10),  # it is about to begin
        (HOUR, 10, SLOW),  # it has been about to begin for an hour
        (10 * MINUTE, 0, SLOW),  # the moment has passed
        (10 * MINUTE, -50, SLOW),
    ],
)
def test_the_longer_it_waits_the_longer_it_is_left_alone(
    waited_s: float, starts_in_s: float | None, pause: float
) -> None:
    assert waiting_pause_s(waited_s, starts_in_s, QUICK, SLOW) == pytest.approx(pause)


expected = st.one_of(st.none(), st.floats(min_value=-1e9, max_value=1e9))


@given(st.floats(min_value=0, max_value=1e9), expected)
def test_nothing_is_looked_at_more_often_or_less_often_than_is_stated(
    waited_s: float, starts_in_s: float | None
) -> None:
    assert QUICK <= waiting_pause_s(waited_s, starts_in_s, QUICK, SLOW) <= SLOW
    assert waiting_pause_s(waited_s, starts_in_s, QUICK, QUICK) == QUICK


@given(st.lists(expected, min_size=1, max_size=40))
def test_an_hour_of_waiting_costs_a_bounded_number_of_looks_whatever_is_expected(estimates: list[float | None]) -> None:
    waited_s, looks = 0.0, 0
    while waited_s < HOUR:
        waited_s += waiting_pause_s(waited_s, estimates[looks % len(estimates)], QUICK, SLOW)
        looks += 1
    assert looks <= AN_HOUR_COSTS_AT_MOST


@given(st.floats(min_value=60, max_value=1e6))
def test_a_person_waits_for_news_no_longer_than_a_tenth_of_the_wait_unless_a_start_is_far(waited_s: float) -> None:
    assert waiting_pause_s(waited_s, None, QUICK, SLOW) <= waited_s / 10


def test_only_what_is_queued_and_wanted_is_left_alone() -> None:
    at = 10 * MINUTE
    assert pause_s(queued(), at, POLICY) == SLOW
    assert pause_s(queued(), 10.0, POLICY) == QUICK
    assert pause_s(queued(estimated_start=at + 8.0, created_at=at - 4 * MINUTE), at, POLICY) == 8.0
    assert pause_s(queued(gone_since=at - 1), at, POLICY) == QUICK, "whether it is lost is being found out"
    assert pause_s(queued(phase=Phase.SUBMITTING, handle=None), at, POLICY) == QUICK
    assert pause_s(queued(phase=Phase.GRANTED, granted_at=1.0), at, POLICY) == QUICK, "its worker is awaited"
    stopped = replace(QUEUED, workload=replace(QUEUED.workload, desired=Desired.STOPPED))
    assert pause_s(stopped, at, POLICY) == QUICK
    assert pause_s(queued(), -50.0, POLICY) == QUICK, "a clock that was set back"


def test_a_command_that_runs_is_left_alone_like_one_that_waits() -> None:
    batch = replace(QUEUED.workload, kind=Kind.BATCH)
    runs = replace(queued(phase=Phase.ACTIVE, granted_at=1000.0), workload=batch)
    assert pause_s(runs, 1010.0, POLICY) == QUICK
    assert pause_s(runs, 1200.0, POLICY) == 20.0
    assert pause_s(runs, 9000.0, POLICY) == SLOW
    assert pause_s(replace(runs, allocation=replace(runs.allocation, gone_since=9.0)), 9000.0, POLICY) == QUICK


def test_a_slow_pace_below_the_quick_one_is_the_quick_one() -> None:
    assert pause_s(queued(), HOUR, Policy(period_s=60.0, steady_period_s=30.0)) == 60.0
