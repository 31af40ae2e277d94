"""What a person is told of a lease, and what the clocks say at their edges."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openai4s_provisioner.orchestration.leases import Activity, Expire, Hold, Lease, TakeBack, Warn, deadline_of, decide
from openai4s_provisioner.orchestration.reasons import Reason

LEASE = Lease("w", "k", 100, 1000, 30, True, 0.0, Activity.IDLE, started_at=0.0, idle_from=0.0)


def test_the_idle_clock_warns_and_ends() -> None:
    assert decide([LEASE], 69.9) == Hold(70.0)
    warned = decide([LEASE], 70.0)
    assert isinstance(warned, Warn)
    assert warned.deadline.at == 100.0
    told = replace(LEASE, warned_for=100.0)
    assert decide([told], 70.0) == Hold(100.0)
    ended = decide([told], 100.0)
    assert isinstance(ended, Expire)
    assert ended.deadline.reason is Reason.SESSION_IDLE_TIMEOUT


def test_a_warning_is_never_longer_than_half_of_its_clock() -> None:
    assert decide([replace(LEASE, warn_s=1_000_000)], 0.0) == Hold(50.0)


@pytest.mark.parametrize("change", [{"last_active_at": 90.0}, {"activity": Activity.BUSY}, {"started_at": None}])
def test_an_announced_end_that_moves_is_taken_back(change: dict[str, object]) -> None:
    assert decide([replace(LEASE, warned_for=100.0, **change)], 91.0) == TakeBack()  # type: ignore[arg-type]


def test_the_sooner_clock_counts() -> None:
    deadline = deadline_of([replace(LEASE, last_active_at=950.0)])
    assert deadline is not None
    assert deadline.at == 1000.0
    assert deadline.reason is Reason.SESSION_MAX_LIFETIME_EXCEEDED
    assert "Save your work" in deadline.sentence


def test_further_kernels_do_not_extend_the_absolute_clock() -> None:
    second = replace(LEASE, kernel_id="k2", started_at=900.0, idle_from=900.0, last_active_at=950.0)
    first = replace(LEASE, held=False)
    deadline = deadline_of([first, second])
    assert deadline is not None
    assert deadline.at == 1000.0


def test_an_idle_kernel_beside_a_working_one_does_not_end_the_allocation() -> None:
    working = replace(LEASE, kernel_id="k2", activity=Activity.BUSY)
    deadline = deadline_of([LEASE, working])
    assert deadline is not None
    assert deadline.reason is Reason.SESSION_MAX_LIFETIME_EXCEEDED


def test_nothing_ends_without_kernels() -> None:
    assert deadline_of([]) is None
    assert deadline_of([replace(LEASE, held=False)]) is None
    assert decide([], 1e12) == Hold()


def test_the_sentence_names_the_time_and_the_command() -> None:
    deadline = deadline_of([LEASE])
    assert deadline is not None
    assert "1970-01-0" in deadline.sentence
    assert "jupyter openai4s keep k" in deadline.sentence
