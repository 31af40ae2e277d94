"""The decisions of the control loop, one by one. Pure: rows, an observation and the time in, actions out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from openai4s_provisioner.orchestration.config import Policy
from openai4s_provisioner.orchestration.models import (
    Allocation,
    Binding,
    Desired,
    ExternalHandle,
    Kind,
    Phase,
    SessionSpec,
    WorkerRow,
    Workload,
)
from openai4s_provisioner.orchestration.notes import NoteGone, NotePause, NoteWaiting, NoteWay, missing_rank
from openai4s_provisioner.orchestration.plan import (
    WORKER_EXIT_NEVER_REGISTERED,
    WORKER_EXIT_SERVER_GONE,
    Action,
    BeginRelease,
    Cancel,
    LookUp,
    MarkActive,
    MarkGranted,
    MarkTerminal,
    RequestStop,
    SendEnd,
    Submit,
    after_empty_lookup,
    plan,
)
from openai4s_provisioner.orchestration.ports import Observation, Observed
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.worker.exit_codes import ExitCode

NOW = 10_000.0
POLICY = Policy()
HANDLE = ExternalHandle("fake", "1")
WORKLOAD = Workload(
    workload_id="w",
    kind=Kind.SESSION,
    owner="me",
    profile="p",
    desired=Desired.RUNNING,
    phase=Phase.SUBMITTING,
    epoch=1,
    spec=SessionSpec("/w", "/w", "python3"),
    created_at=0.0,
)
STOPPED = replace(WORKLOAD, desired=Desired.STOPPED, reason=Reason.USER_CANCELLED, reason_detail="enough")
FRESH = Allocation("a", "w", 1, "t" * 32, "fake", Phase.SUBMITTING, 0.0)
PENDING = replace(FRESH, phase=Phase.PENDING, handle=HANDLE)
GRANTED = replace(PENDING, phase=Phase.GRANTED, granted_at=NOW - 10)
ACTIVE = replace(GRANTED, phase=Phase.ACTIVE)
RELEASING = replace(ACTIVE, phase=Phase.RELEASING, drain_since=NOW - 1)
WORKER = WorkerRow("a", 0, "host", NOW - 5, True, workspace_ready=True, link_since=NOW - 5)
AWAY = replace(WORKER, connected=False)
ENDED = replace(AWAY, ended_at=NOW - 1, exit_code=0)
READY = Binding("k", "w", "", 0.0, "l", kernel_ready_at=NOW - 1)
RUNS, WAITS, GONE = Observation(Observed.RUNNING), Observation(Observed.PENDING), Observation(Observed.GONE)


def decide(
    allocation: Allocation,
    observation: Observation | None = None,
    *workers: WorkerRow,
    workload: Workload = WORKLOAD,
    bindings: tuple[Binding, ...] = (),
) -> tuple[Action, ...]:
    workload = replace(workload, phase=allocation.phase)
    return plan(workload, allocation, observation, workers, bindings, NOW, POLICY)


# -- submitting --------------------------------------------------------------------------------------------------------


def test_a_fresh_attempt_is_submitted() -> None:
    assert decide(FRESH) == (Submit(),)


def test_a_stop_before_the_submission_cancels_without_one() -> None:
    assert decide(FRESH, workload=STOPPED) == (MarkTerminal(Phase.CANCELLED, Reason.USER_CANCELLED, "enough"),)


@pytest.mark.parametrize("workload", [WORKLOAD, STOPPED])
def test_an_unknown_fate_is_looked_up_whatever_is_wished(workload: Workload) -> None:
    assert decide(replace(FRESH, submit_unknown_since=NOW - 1e6), workload=workload) == (LookUp(),)


def test_an_empty_lookup_says_nothing_before_the_settle_window() -> None:
    unknown = replace(FRESH, submit_unknown_since=NOW, submit_attempts=1)
    just_before = NOW + POLICY.settle_window_s - 0.1
    for workload in (WORKLOAD, STOPPED):
        assert after_empty_lookup(workload, unknown, just_before, POLICY) == ()
    after = NOW + POLICY.settle_window_s
    assert after_empty_lookup(WORKLOAD, unknown, after, POLICY) == (Submit(),)
    (ended,) = after_empty_lookup(STOPPED, unknown, after, POLICY)
    assert isinstance(ended, MarkTerminal)
    assert ended.phase is Phase.CANCELLED
    (failed,) = after_empty_lookup(WORKLOAD, replace(unknown, submit_attempts=3), after, POLICY)
    assert isinstance(failed, MarkTerminal)
    assert failed.reason is Reason.BACKEND_SUBMISSION_UNKNOWN


def test_an_empty_lookup_means_nothing_once_the_handle_is_known() -> None:
    assert after_empty_lookup(WORKLOAD, PENDING, NOW + 1e6, POLICY) == ()


# -- progress ----------------------------------------------------------------------------------------------------------


def test_a_waiting_reason_is_written_down_once() -> None:
    busy = replace(WAITS, waiting="for room", backend_detail="(Raw)")
    assert decide(PENDING, busy) == (NoteWaiting("for room", "(Raw)"),)
    assert decide(replace(PENDING, waiting="for room"), busy) == ()


@pytest.mark.parametrize(
    ("observation", "workers"), [(RUNS, ()), (WAITS, (WORKER,)), (None, (WORKER,)), (GONE, (WORKER,))]
)
def test_granted_is_what_the_backend_says_or_a_worker_shows(
    observation: Observation | None, workers: tuple[WorkerRow, ...]
) -> None:
    assert decide(PENDING, observation, *workers) == (MarkGranted(),)


def test_active_needs_every_rank_and_the_kernel() -> None:
    two = replace(GRANTED, nodes=2)
    other = replace(WORKER, rank=1)
    assert decide(two, RUNS, WORKER, other, bindings=(READY,)) == (MarkActive(),)
    assert decide(two, RUNS, WORKER, bindings=(READY,)) == (NoteWay(1),)
    assert decide(two, RUNS, WORKER, replace(other, workspace_ready=False), bindings=(READY,)) == ()
    assert decide(two, RUNS, WORKER, other, bindings=(replace(READY, kernel_ready_at=None),)) == ()
    assert decide(two, RUNS, WORKER, other, bindings=(replace(READY, released_at=NOW),)) == ()


def test_a_worker_that_does_not_register_in_time_ends_the_wait() -> None:
    late = replace(GRANTED, nodes=2, granted_at=NOW - POLICY.registration_timeout_s)
    assert decide(late, RUNS, WORKER) == (
        NoteWay(1),
        RequestStop(Reason.WORKER_REGISTRATION_TIMEOUT, "1 of 2 workers connected; missing: 1."),
    )
    assert decide(replace(late, granted_at=NOW - POLICY.registration_timeout_s + 1), RUNS) == (NoteWay(0),)
    assert decide(late, None) == ()  # could not ask: ends nothing


def test_why_a_worker_does_not_come_is_asked_for_only_when_it_is_late() -> None:
    assert decide(replace(GRANTED, granted_at=NOW - 1), RUNS) == ()
    assert decide(GRANTED, RUNS) == (NoteWay(0),)
    assert decide(GRANTED, None) == (), "could not ask: nothing is known to run"
    assert decide(GRANTED, RUNS, WORKER) == (), "it came"


def test_a_queued_allocation_never_times_out() -> None:
    assert decide(replace(PENDING, created_at=NOW - 1e7), WAITS) == ()


@pytest.mark.parametrize("phase", list(Phase))
def test_could_not_ask_moves_nothing(phase: Phase) -> None:
    allocation = replace(ACTIVE, phase=phase, gone_since=NOW - 1e6, granted_at=NOW - 1e6)
    if phase is Phase.SUBMITTING:
        allocation = replace(allocation, handle=None, submit_unknown_since=NOW)
    for observation in (None, Observation(Observed.UNKNOWN)):
        actions = decide(allocation, observation, AWAY)
        assert not [each for each in actions if not isinstance(each, LookUp)]


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase.is_terminal])
def test_nothing_is_done_about_what_is_over(phase: Phase) -> None:
    assert decide(replace(ACTIVE, phase=phase), RUNS, workload=STOPPED) == ()


# -- the end -----------------------------------------------------------------------------------------------------------


def ended(actions: tuple[Action, ...]) -> MarkTerminal:
    (action,) = actions
    assert isinstance(action, MarkTerminal)
    return action


@pytest.mark.parametrize(
    ("state", "reason", "workers", "phase", "told"),
    [
        (Observed.FAILED, Reason.OUT_OF_MEMORY, (WORKER,), Phase.FAILED, Reason.OUT_OF_MEMORY),
        (Observed.FAILED, None, (WORKER,), Phase.FAILED, Reason.WORKER_LOST),
        (Observed.FAILED, None, (), Phase.FAILED, Reason.BOOTSTRAP_FAILED),
        (Observed.COMPLETED, None, (), Phase.FAILED, Reason.BOOTSTRAP_FAILED),
        (Observed.COMPLETED, None, (ENDED,), Phase.CANCELLED, Reason.ADMIN_CANCELLED),
        (Observed.CANCELLED, None, (WORKER,), Phase.CANCELLED, Reason.ADMIN_CANCELLED),
        (Observed.CANCELLED, Reason.PREEMPTED, (WORKER,), Phase.CANCELLED, Reason.PREEMPTED),
    ],
)
def test_an_explicit_word_is_final_at_once(
    state: Observed, reason: Reason | None, workers: tuple[WorkerRow, ...], phase: Phase, told: Reason
) -> None:
    action = ended(decide(ACTIVE, Observation(state, reason), *workers))
    assert (action.phase, action.reason, action.backend_reason) == (phase, told, reason)


def test_what_the_backend_explains_for_everybody_is_read_with_the_reason() -> None:
    why = "It was put back. Start it again."
    seen = Observation(Observed.FAILED, Reason.PREEMPTED, backend_detail="raw", explanation=why)
    action = ended(decide(ACTIVE, seen, AWAY))
    assert (action.detail, action.backend_detail, action.is_explained) == (why, "raw", True)
    assert ended(decide(replace(ACTIVE, phase=Phase.PENDING), seen)).detail == why


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (WORKER_EXIT_SERVER_GONE, Reason.SERVER_GONE),
        (WORKER_EXIT_NEVER_REGISTERED, Reason.WORKER_REGISTRATION_TIMEOUT),
    ],
)
def test_the_workers_exit_code_tells_the_true_cause(code: int, reason: Reason) -> None:
    action = ended(decide(ACTIVE, Observation(Observed.FAILED, exit_code=code), AWAY))
    assert (action.phase, action.reason) == (Phase.FAILED, reason)


def test_the_exit_codes_are_those_of_the_worker() -> None:
    assert ExitCode.SERVER_GONE == WORKER_EXIT_SERVER_GONE
    assert ExitCode.NEVER_REGISTERED == WORKER_EXIT_NEVER_REGISTERED


def test_gone_is_a_suspicion_first_and_lost_after_the_debounce() -> None:
    assert decide(ACTIVE, GONE, AWAY) == (NoteGone(NOW),)
    assert decide(replace(ACTIVE, gone_since=NOW - 59), GONE, AWAY) == ()
    action = ended(decide(replace(ACTIVE, gone_since=NOW - 60), GONE, AWAY))
    assert (action.phase, action.reason) == (Phase.LOST, Reason.WORKER_LOST)
    assert decide(replace(ACTIVE, gone_since=NOW - 1e6), RUNS, AWAY) == (NoteGone(None),)


def test_a_worker_that_talks_outweighs_gone() -> None:
    assert decide(replace(ACTIVE, gone_since=NOW - 1e6), GONE, WORKER) == (NoteGone(None),)


def test_gone_after_every_worker_said_goodbye_is_final_at_once() -> None:
    action = ended(decide(RELEASING, GONE, ENDED, workload=STOPPED))
    assert (action.phase, action.reason) == (Phase.COMPLETED, Reason.USER_CANCELLED)
    crashed = ended(decide(ACTIVE, GONE, replace(ENDED, exit_code=1)))
    assert (crashed.phase, crashed.reason) == (Phase.FAILED, Reason.WORKER_LOST)
    assert decide(replace(ACTIVE, nodes=2), GONE, ENDED) == (NoteGone(NOW),)  # the other rank said nothing


def test_what_we_asked_to_end_and_find_nowhere_was_cancelled_not_lost() -> None:
    action = ended(decide(replace(RELEASING, gone_since=NOW - 60), GONE, AWAY, workload=STOPPED))
    assert (action.phase, action.reason) == (Phase.CANCELLED, Reason.USER_CANCELLED)


@pytest.mark.parametrize("state", [Observed.COMPLETED, Observed.FAILED, Observed.CANCELLED])
def test_our_own_reason_survives_every_word_of_the_backend(state: Observed) -> None:
    action = ended(decide(RELEASING, Observation(state, Reason.NODE_FAILED), WORKER, workload=STOPPED))
    assert (action.reason, action.backend_reason) == (Reason.USER_CANCELLED, Reason.NODE_FAILED)
    assert action.phase is (Phase.COMPLETED if state is Observed.COMPLETED else Phase.CANCELLED)


def test_a_stop_for_a_failure_ends_as_failed() -> None:
    broken = replace(STOPPED, reason=Reason.ISOLATION_UNVERIFIED)
    assert ended(decide(RELEASING, Observation(Observed.COMPLETED), ENDED, workload=broken)).phase is Phase.FAILED


# -- the cancel barrier ------------------------------------------------------------------------------------------------


def test_the_barrier_fences_drains_then_cancels_and_then_waits_for_the_end() -> None:
    assert decide(ACTIVE, RUNS, WORKER, workload=STOPPED) == (BeginRelease(), SendEnd(first=True))
    assert decide(RELEASING, RUNS, WORKER, workload=STOPPED) == (SendEnd(first=False),)
    drained = replace(RELEASING, drain_since=NOW - POLICY.drain_s)
    assert decide(drained, RUNS, WORKER, workload=STOPPED) == (Cancel(),)
    asked = replace(drained, cancel_asked_at=NOW - 1)
    assert decide(asked, RUNS, WORKER, workload=STOPPED) == ()
    long_ago = replace(drained, cancel_asked_at=NOW - POLICY.cancel_again_s)
    assert decide(long_ago, RUNS, WORKER, workload=STOPPED) == (Cancel(),)


def test_without_a_worker_there_is_nothing_to_drain() -> None:
    assert decide(PENDING, WAITS, workload=STOPPED) == (BeginRelease(), Cancel())


def test_workers_that_said_goodbye_are_given_the_time_to_end_well_and_no_more() -> None:
    assert decide(RELEASING, RUNS, ENDED, workload=STOPPED) == (SendEnd(first=False),)
    drained = replace(RELEASING, drain_since=NOW - POLICY.drain_s)
    assert decide(drained, RUNS, ENDED, workload=STOPPED) == (Cancel(),)
    before_the_barrier = replace(RELEASING, drain_since=None)
    assert decide(before_the_barrier, RUNS, ENDED, workload=STOPPED) == (SendEnd(first=True),)


def test_the_barrier_goes_on_while_the_backend_cannot_be_asked() -> None:
    drained = replace(RELEASING, drain_since=NOW - POLICY.drain_s)
    assert decide(drained, None, WORKER, workload=STOPPED) == (Cancel(),)


# -- silence -----------------------------------------------------------------------------------------------------------


def test_a_rank_without_a_link_for_too_long_is_lost() -> None:
    silent = replace(AWAY, link_since=NOW - POLICY.worker_lost_s)
    assert decide(ACTIVE, RUNS, silent) == (RequestStop(Reason.WORKER_LOST, "Worker 0 on host fell silent."),)
    assert decide(ACTIVE, RUNS, AWAY) == ()


PAUSED = Observation(Observed.PAUSED)


def test_while_the_site_pauses_it_nobody_is_late_however_long_that_lasts() -> None:
    silent = replace(AWAY, link_since=NOW - 10 * POLICY.worker_lost_s)
    assert decide(ACTIVE, PAUSED, silent) == (NotePause(True),)
    paused = replace(ACTIVE, paused_since=NOW - 9 * POLICY.worker_lost_s)
    assert decide(paused, PAUSED, silent) == ()
    assert decide(paused, None, silent) == (), "nor when nobody can be asked meanwhile"
    late = replace(GRANTED, granted_at=NOW - 10 * POLICY.registration_timeout_s, paused_since=NOW - 1)
    assert decide(late, PAUSED) == ()


def test_one_that_goes_on_has_as_much_time_as_any_to_be_heard_of() -> None:
    silent = replace(AWAY, link_since=NOW - 10 * POLICY.worker_lost_s)
    assert decide(replace(ACTIVE, paused_since=NOW - 100), RUNS, silent) == (NotePause(False),)
    resumed = replace(ACTIVE, resumed_at=NOW - POLICY.worker_lost_s + 1)
    assert decide(resumed, RUNS, silent) == ()
    assert decide(replace(resumed, resumed_at=NOW - POLICY.worker_lost_s), RUNS, silent) != ()
    late = replace(GRANTED, granted_at=NOW - 10 * POLICY.registration_timeout_s)
    assert decide(replace(late, resumed_at=NOW - 1), RUNS) == ()
    assert decide(late, RUNS) != ()


def test_one_that_is_paused_before_it_was_seen_to_run_has_its_place() -> None:
    assert decide(PENDING, PAUSED) == (MarkGranted(),)


def test_workers_that_are_paused_cannot_be_told_to_end_and_are_not_waited_for() -> None:
    drained = replace(RELEASING, drain_since=NOW)
    assert decide(drained, RUNS, WORKER, workload=STOPPED) == (SendEnd(first=False),)
    assert decide(drained, PAUSED, WORKER, workload=STOPPED) == (Cancel(),)


# -- several ranks -----------------------------------------------------------------------------------------------------


def gang(*changes: Mapping[str, Any]) -> tuple[WorkerRow, ...]:
    return tuple(replace(WORKER, rank=rank, host=f"n{rank}", **each) for rank, each in enumerate(changes))


def test_one_rank_that_ends_ends_the_attempt_once_the_others_had_time_to_end_as_well() -> None:
    pair = replace(ACTIVE, nodes=2)
    said = {"ended_at": NOW - POLICY.rank_settle_s, "exit_code": 0, "exit_reason": "signal SIGTERM"}
    lost = RequestStop(Reason.WORKER_LOST, "Worker 1 on n1 ended (signal SIGTERM).")
    assert decide(pair, RUNS, *gang({}, said)) == (lost,)
    assert decide(pair, RUNS, *gang({}, {**said, "ended_at": NOW - 1})) == (), "the backend may be about to say why"
    assert decide(pair, RUNS, *gang(said, said)) == (), "all of them ended: the backend says the rest"
    coded = {**said, "exit_code": 75}
    assert decide(pair, RUNS, *gang({}, coded)) == (
        RequestStop(Reason.WORKER_LOST, "Worker 1 on n1 ended with code 75."),
    )


def test_the_rank_that_was_lost_is_named_beside_the_backend_s_word() -> None:
    word = Observation(Observed.FAILED, Reason.NODE_FAILED)
    silent, said = {"connected": False}, {"ended_at": NOW, "exit_code": 0}
    action = ended(decide(replace(ACTIVE, nodes=3), word, *gang(said, silent, said)))
    assert (action.reason, action.detail) == (Reason.NODE_FAILED, "worker 1 on n1 fell silent")
    assert ended(decide(replace(ACTIVE, nodes=2), word, *gang(silent, silent))).detail == "", "nobody stands out"


def test_of_many_ranks_that_are_missing_some_are_named_and_the_first_one_s_log_is_read() -> None:
    late = replace(GRANTED, nodes=20, granted_at=NOW - POLICY.registration_timeout_s)
    (noted, action) = decide(late, RUNS, *gang({}, {}))
    assert noted == NoteWay(2)
    assert isinstance(action, RequestStop)
    assert action.detail == "2 of 20 workers connected; missing: 2, 3, 4, 5, 6, 7, 8, 9 and others."
    assert missing_rank(late, gang({}, {})) == 2
    assert missing_rank(GRANTED, ()) == 0
