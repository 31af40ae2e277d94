"""How a BATCH's end is explained: by the record beside it, by the backend's word, or by both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openai4s_provisioner.orchestration.batch_plan import plan_batch
from openai4s_provisioner.orchestration.config import Policy
from openai4s_provisioner.orchestration.models import (
    Allocation,
    BatchSpec,
    CommandExit,
    Desired,
    ExternalHandle,
    Kind,
    Phase,
    Workload,
)
from openai4s_provisioner.orchestration.notes import NoteGone
from openai4s_provisioner.orchestration.plan import (
    BeginRelease,
    Cancel,
    MarkActive,
    MarkGranted,
    MarkTerminal,
    RecordExit,
    Submit,
)
from openai4s_provisioner.orchestration.ports import Observation, Observed
from openai4s_provisioner.orchestration.reasons import Reason

NOW = 1000.0
POLICY = Policy()
WORKLOAD = Workload(
    workload_id="w",
    kind=Kind.BATCH,
    owner="me",
    profile="p",
    desired=Desired.RUNNING,
    phase=Phase.ACTIVE,
    epoch=1,
    spec=BatchSpec("/w", "/w", ("true",)),
    created_at=0.0,
)
STOPPED = replace(WORKLOAD, desired=Desired.STOPPED, reason=Reason.USER_CANCELLED)
ALLOCATION = Allocation("a", "w", 1, "t" * 32, "fake", Phase.ACTIVE, 0.0, ExternalHandle("fake", "h"), granted_at=1.0)
WELL = CommandExit(0, None, NOW)
BADLY = CommandExit(3, None, NOW)
KILLED = CommandExit(None, 9, NOW)
ASKED = CommandExit(None, 15, NOW, asked="signal SIGTERM")


def decide(
    state: Observed,
    ended: CommandExit | None = None,
    *,
    workload: Workload = WORKLOAD,
    allocation: Allocation = ALLOCATION,
    reason: Reason | None = None,
    now: float = NOW,
) -> tuple[object, ...]:
    return plan_batch(workload, allocation, Observation(state, reason), ended, now, POLICY)


def end_of(actions: tuple[object, ...]) -> tuple[Phase, Reason | None]:
    end = actions[-1]
    assert isinstance(end, MarkTerminal)
    return end.phase, end.reason


def test_it_is_submitted_like_anything_else() -> None:
    fresh = replace(ALLOCATION, handle=None, phase=Phase.SUBMITTING)
    assert decide(Observed.UNKNOWN, allocation=fresh) == (Submit(),)


def test_it_is_active_as_soon_as_it_runs_and_no_registration_is_waited_for() -> None:
    assert decide(Observed.RUNNING, allocation=replace(ALLOCATION, phase=Phase.PENDING)) == (MarkGranted(),)
    granted = replace(ALLOCATION, phase=Phase.GRANTED)
    assert decide(Observed.RUNNING, allocation=granted, now=1e6) == (MarkActive(),)
    assert decide(Observed.UNKNOWN, allocation=granted, now=1e6) == ()


@pytest.mark.parametrize(
    ("ended", "word", "reason", "expected"),
    [
        (WELL, Observed.COMPLETED, None, (Phase.COMPLETED, None)),
        (BADLY, Observed.COMPLETED, None, (Phase.FAILED, None)),
        (KILLED, Observed.COMPLETED, None, (Phase.FAILED, None)),
        (KILLED, Observed.FAILED, Reason.OUT_OF_MEMORY, (Phase.FAILED, Reason.OUT_OF_MEMORY)),
        (ASKED, Observed.FAILED, Reason.TIME_LIMIT_EXCEEDED, (Phase.FAILED, Reason.TIME_LIMIT_EXCEEDED)),
        (ASKED, Observed.CANCELLED, Reason.ADMIN_CANCELLED, (Phase.CANCELLED, Reason.ADMIN_CANCELLED)),
        (None, Observed.FAILED, Reason.NODE_FAILED, (Phase.FAILED, Reason.NODE_FAILED)),
        (None, Observed.FAILED, None, (Phase.FAILED, Reason.WORKER_LOST)),
        (WELL, Observed.GONE, None, (Phase.COMPLETED, None)),
    ],
)
def test_the_record_says_how_and_the_backend_says_why(
    ended: CommandExit | None, word: Observed, reason: Reason | None, expected: tuple[Phase, Reason | None]
) -> None:
    actions = decide(word, ended, reason=reason)
    assert end_of(actions) == expected
    assert [a for a in actions if isinstance(a, RecordExit)] == ([RecordExit(ended)] if ended else [])


def test_what_was_not_run_says_why() -> None:
    refused = CommandExit(None, None, NOW, reason=Reason.WORKSPACE_UNREACHABLE, detail="It is read-only.")
    assert end_of(decide(Observed.COMPLETED, refused)) == (Phase.FAILED, Reason.WORKSPACE_UNREACHABLE)


def test_what_could_never_run_says_why_as_the_backend_explains_it() -> None:
    seen = Observation(Observed.FAILED, Reason.UNSCHEDULABLE, explanation="It asks for too much. Ask for less.")
    waits = replace(ALLOCATION, phase=Phase.PENDING, granted_at=None)
    (end,) = plan_batch(WORKLOAD, waits, seen, None, NOW, POLICY)
    assert isinstance(end, MarkTerminal)
    assert (end.reason, end.detail, end.is_explained) == (Reason.UNSCHEDULABLE, seen.explanation, True)


def test_a_stop_is_cancelled_first_and_its_reason_survives() -> None:
    assert decide(Observed.RUNNING, workload=STOPPED) == (BeginRelease(), Cancel())
    assert end_of(decide(Observed.CANCELLED, ASKED, workload=STOPPED)) == (Phase.CANCELLED, Reason.USER_CANCELLED)


def test_what_ended_well_before_the_stop_had_ended_well() -> None:
    assert end_of(decide(Observed.CANCELLED, WELL, workload=STOPPED)) == (Phase.COMPLETED, None)


def test_a_record_that_does_not_show_yet_is_waited_for_but_not_for_ever() -> None:
    assert decide(Observed.COMPLETED) == (NoteGone(NOW),)
    waiting = replace(ALLOCATION, gone_since=NOW)
    assert decide(Observed.COMPLETED, allocation=waiting, now=NOW + POLICY.workspace_settle_s - 1) == ()
    assert end_of(decide(Observed.COMPLETED, allocation=waiting, now=NOW + POLICY.workspace_settle_s)) == (
        Phase.FAILED,
        Reason.WORKER_LOST,
    )
    assert end_of(decide(Observed.COMPLETED, WELL, allocation=waiting)) == (Phase.COMPLETED, None)


def test_could_not_ask_ends_nothing_even_with_a_record() -> None:
    assert decide(Observed.UNKNOWN, WELL) == ()


def test_gone_without_a_record_is_lost_after_the_debounce() -> None:
    suspected = replace(ALLOCATION, gone_since=NOW - POLICY.gone_debounce_s)
    assert decide(Observed.GONE) == (NoteGone(NOW),)
    assert end_of(decide(Observed.GONE, allocation=suspected)) == (Phase.LOST, Reason.WORKER_LOST)
