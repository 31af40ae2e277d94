"""What the store keeps, and what its schema refuses whatever the code does."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from typing import Any

import pytest

from openai4s_provisioner.orchestration.errors import IllegalTransition, Refused, SessionEnded, StateError
from openai4s_provisioner.orchestration.models import (
    Desired,
    ExternalHandle,
    KernelExit,
    LeasePolicy,
    LinkState,
    Phase,
    Registration,
)
from openai4s_provisioner.orchestration.phases import PhaseEvent
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.store import Ending, Situation, Store, drivers

from .conftest import DAEMON, new_session

HANDLE = ExternalHandle("fake", "h")
RANK0 = Registration("w0", "a0", 1, 0)
KEY = b"k" * 32
NO_ESTIMATE = {"estimated_start": None, "position": None, "now": 1.0}


def now_of(store: Store, workload_id: str = "w0") -> Situation:
    situation = store.situation(workload_id)
    assert situation is not None
    return situation


def grant(store: Store) -> None:
    assert store.begin_submit(now_of(store).allocation, DAEMON, 2.0)
    store.handle_known("a0", HANDLE)
    store.advance("a0", PhaseEvent.GRANTED, 3.0)


def end(store: Store, phase: Phase = Phase.FAILED) -> None:
    store.end("a0", Ending(phase, Reason.OUT_OF_MEMORY, "too much", Reason.OUT_OF_MEMORY, "raw"), 9.0)


# -- what a session is -------------------------------------------------------------------------------------------------


def test_a_session_is_opened_whole_or_not_at_all(store: Store) -> None:
    before = store.db.rows("driven", daemon_id=DAEMON)
    with pytest.raises(sqlite3.IntegrityError):
        store.open_session(new_session(1, launch_id="l0"), DAEMON, 1.0)  # the last but one of its statements fails
    assert store.db.rows("driven", daemon_id=DAEMON) == before
    assert store.situation("w1") is None


def test_a_session_reads_as_it_was_written(store: Store) -> None:
    now = now_of(store)
    assert (now.workload.desired, now.workload.phase, now.allocation.phase) == (
        Desired.RUNNING,
        Phase.SUBMITTING,
        Phase.SUBMITTING,
    )
    assert now.workload.spec == new_session().spec
    assert now.allocation.token == new_session().token
    assert [binding.kernel_id for binding in now.bindings] == ["k0"]
    launch = now.launch("k0")
    assert launch is not None
    assert launch.launch_id == "l0"


def test_the_limit_is_counted_in_the_same_commit(store: Store) -> None:
    with pytest.raises(Refused) as caught:
        store.open_session(new_session(1, max_sessions=1), DAEMON, 1.0)
    assert caught.value.reason is Reason.QUOTA_EXCEEDED
    end(store)
    store.open_session(new_session(1, max_sessions=1), DAEMON, 1.0)


# -- wish and fact -----------------------------------------------------------------------------------------------------


def test_no_statement_writes_a_wish_and_a_fact_together() -> None:
    from openai4s_provisioner.orchestration.store.sqlite import QUERIES

    for name, text in QUERIES.items():
        if text.startswith("UPDATE workload"):
            written = text.partition("SET")[2].partition("WHERE")[0]
            assert not ("desired" in written and "phase" in written), name


def test_the_first_wish_stays_and_moves_no_phase(store: Store) -> None:
    grant(store)
    assert store.request_stop("w0", Reason.USER_CANCELLED, "enough", "me", 5.0)
    assert not store.request_stop("w0", Reason.ADMIN_CANCELLED, "no", "admin", 6.0)
    workload = now_of(store).workload
    assert (workload.reason, workload.actor, workload.phase) == (Reason.USER_CANCELLED, "me", Phase.GRANTED)
    store.advance("a0", PhaseEvent.RELEASE, 7.0)
    assert now_of(store).workload.desired is Desired.STOPPED


def test_a_null_reason_erases_none(store: Store) -> None:
    grant(store)
    store.request_stop("w0", Reason.SESSION_IDLE_TIMEOUT, "", "clock", 5.0)
    store.end("a0", Ending(Phase.CANCELLED), 6.0)
    assert now_of(store).workload.reason is Reason.SESSION_IDLE_TIMEOUT


# -- attempts ----------------------------------------------------------------------------------------------------------


def test_a_second_active_attempt_is_refused_by_the_schema(store: Store) -> None:
    with pytest.raises(sqlite3.IntegrityError, match=r"allocation\.workload_id"):
        store.db.write(
            "insert_allocation",
            allocation_id="a1",
            workload_id="w0",
            epoch=2,
            token="x" * 32,
            backend="fake",
            nodes=1,
            now=1.0,
        )


@pytest.mark.parametrize("change", [{"epoch": 1}, {"epoch": 2, "token": f"{0:032d}"}, {"epoch": 2, "token": "short"}])
def test_an_epoch_and_a_token_are_used_once(store: Store, change: dict[str, object]) -> None:
    end(store)
    values = {"allocation_id": "a1", "workload_id": "w0", "token": "x" * 32, "backend": "fake", "nodes": 1, "now": 1.0}
    with pytest.raises(sqlite3.IntegrityError):
        store.db.write("insert_allocation", **(values | change))


def test_one_handle_belongs_to_one_attempt(store: Store) -> None:
    grant(store)
    store.open_session(new_session(1), DAEMON, 1.0)
    with pytest.raises(sqlite3.IntegrityError):
        store.handle_known("a1", HANDLE)


def test_a_submission_begins_only_from_what_the_decision_was_made_on(store: Store) -> None:
    fresh = now_of(store).allocation
    assert not store.begin_submit(fresh, "another process", 2.0)
    assert store.begin_submit(fresh, DAEMON, 2.0)
    assert not store.begin_submit(fresh, DAEMON, 2.0)  # its fate is unknown now
    unknown = now_of(store).allocation
    assert (unknown.submit_unknown_since, unknown.submit_attempts) == (2.0, 1)
    store.submit_unknown("a0", "timed out", 30.0)
    assert not store.begin_submit(unknown, DAEMON, 31.0)
    store.request_stop("w0", Reason.USER_CANCELLED, "", "me", 32.0)
    assert not store.begin_submit(now_of(store).allocation, DAEMON, 33.0)


def test_an_event_that_the_table_does_not_hold_changes_nothing(store: Store) -> None:
    before = now_of(store)
    for event in (PhaseEvent.GRANTED, PhaseEvent.READY, PhaseEvent.RELEASE, PhaseEvent.COMPLETED):
        with pytest.raises(IllegalTransition):
            store.advance("a0", event, 2.0)
    with pytest.raises(IllegalTransition):
        store.end("a0", Ending(Phase.LOST), 2.0)
    assert now_of(store) == before


def test_the_schema_holds_no_phase_beyond_submitting_without_a_handle(store: Store) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        store.db.write("set_allocation_phase", allocation_id="a0", phase="GRANTED", before="SUBMITTING", granted_at=1.0)


def test_terminal_rows_are_never_rewritten(store: Store) -> None:
    grant(store)
    end(store)
    before = now_of(store)
    attempts: list[tuple[str, dict[str, object]]] = [
        ("set_waiting", {"allocation_id": "a0", "waiting": "x", "backend_detail": "", **NO_ESTIMATE}),
        ("set_workload_phase", {"workload_id": "w0", "epoch": 1, "phase": "ACTIVE"}),
        ("end_workload", {"workload_id": "w0", "epoch": 1, "phase": "LOST", "reason": None, "detail": "", "now": 1.0}),
        ("set_handle", {"allocation_id": "a0", "handle": "z", "phase": "PENDING", "before": "FAILED"}),
    ]
    for name, values in attempts:
        with pytest.raises(sqlite3.IntegrityError, match="never rewritten"):
            store.db.write(name, **values)
    with pytest.raises(IllegalTransition):
        end(store, Phase.COMPLETED)
    assert not store.request_stop("w0", Reason.USER_CANCELLED, "", "me", 10.0)
    assert now_of(store) == before


def test_an_end_releases_everything_that_hung_on_the_attempt(store: Store) -> None:
    grant(store)
    assert store.register_worker(RANK0, "n", KEY, "host", 4.0)
    end(store)
    assert store.workload_of_kernel("k0") is None
    assert store.resume_key("a0", 0) is None
    assert store.db.rows("workers", allocation_id="a0")[0]["resume_key"] is None
    assert [each.allocation_id for each in store.debris(DAEMON)] == ["a0"]
    store.debris_cleared("a0")
    assert store.debris(DAEMON) == []


# -- workers (INV-7) ---------------------------------------------------------------------------------------------------


def test_a_credential_is_burned_once(store: Store) -> None:
    grant(store)
    assert store.register_worker(RANK0, "n0", KEY, "host", 4.0)
    assert not store.register_worker(RANK0, "n0", KEY, "host", 5.0)
    assert not store.register_worker(RANK0, "fresh", KEY, "host", 5.0)
    assert not store.register_worker(replace(RANK0, rank=1), "n0", KEY, "host", 5.0)
    assert store.register_worker(replace(RANK0, rank=1), "n1", KEY, "host", 5.0)
    assert store.resume_key("a0", 0) == KEY


@pytest.mark.parametrize(
    "who",
    [
        replace(RANK0, epoch=2),
        replace(RANK0, workload_id="w1"),
        replace(RANK0, allocation_id="a1"),
        replace(RANK0, rank=2),
    ],
)
def test_what_is_not_the_live_attempt_is_refused_and_burns_nothing(store: Store, who: Registration) -> None:
    grant(store)
    assert not store.register_worker(who, "n", KEY, "host", 4.0)
    assert store.register_worker(RANK0, "n", KEY, "host", 4.0)


def test_the_fence_refuses_a_first_dial_and_lets_a_known_worker_resume(store: Store) -> None:
    grant(store)
    store.register_worker(RANK0, "n", KEY, "host", 4.0)
    assert store.is_expected("a0", 1)
    store.request_stop("w0", Reason.USER_CANCELLED, "", "me", 5.0)
    assert not store.register_worker(replace(RANK0, rank=1), "n1", KEY, "host", 6.0)
    assert not store.is_expected("a0", 1)
    assert store.resume_key("a0", 0) == KEY  # it still has to hear that it must end
    store.end("a0", Ending(Phase.CANCELLED), 7.0)
    assert store.resume_key("a0", 0) is None


def test_a_link_state_is_written_when_it_changes(store: Store) -> None:
    grant(store)
    store.register_worker(RANK0, "n", KEY, "host", 4.0)
    store.worker_link("a0", 0, LinkState.CONNECTED, 5.0)
    (worker,) = now_of(store).workers
    assert (worker.connected, worker.link_since) == (True, 4.0)
    store.worker_link("a0", 0, LinkState.RECONNECTING, 6.0)
    store.worker_link("a0", 0, LinkState.RECONNECTING, 7.0)
    (worker,) = now_of(store).workers
    assert (worker.connected, worker.link_since) == (False, 6.0)


def test_a_report_after_the_end_comes_too_late(store: Store) -> None:
    grant(store)
    store.register_worker(RANK0, "n", KEY, "host", 4.0)
    end(store)
    before = now_of(store)
    store.worker_link("a0", 0, LinkState.RECONNECTING, 10.0)
    store.worker_ended("a0", 0, 1, "late", 10.0)
    store.workspace("a0", 0, True, "")
    assert now_of(store) == before


# -- kernels -----------------------------------------------------------------------------------------------------------


def ready(store: Store, launch_id: str) -> None:
    store.kernel_isolated(launch_id, True)
    store.kernel_started(launch_id, 1, 5.0)
    store.kernel_ready(launch_id, 6.0)


def test_a_restart_makes_the_kernel_unready_until_the_new_start_answers(store: Store) -> None:
    ready(store, "l0")
    assert now_of(store).readiness("k0").kernel
    allocation = store.bind_launch("w0", "k0", "l1", "a.ipynb", LeasePolicy(), 7.0)
    assert allocation.allocation_id == "a0"
    assert not now_of(store).readiness("k0").kernel
    ready(store, "l0")  # an answer of the former start says nothing about this one
    assert not now_of(store).readiness("k0").kernel
    ready(store, "l1")
    assert now_of(store).readiness("k0").kernel


def test_an_exit_is_kept_as_first_reported_and_ends_readiness(store: Store) -> None:
    ready(store, "l0")
    store.kernel_exited(KernelExit("l0", None, 9, "tail", 7.0))
    store.kernel_exited(KernelExit("l0", 0, None, "", 8.0))
    launch = now_of(store).launch("k0")
    assert launch is not None
    assert launch.exit == KernelExit("l0", None, 9, "tail", 7.0)
    assert not now_of(store).readiness().kernel


def test_isolation_that_failed_is_not_taken_back(store: Store) -> None:
    store.kernel_isolated("l0", False)
    ready(store, "l0")
    assert not now_of(store).readiness().kernel


def test_the_last_kernel_takes_the_session_with_it(store: Store) -> None:
    store.bind_launch("w0", "k1", "l1", "", LeasePolicy(), 2.0)
    assert store.release_kernel("k0", Reason.USER_CANCELLED, "me", 3.0) == "w0"
    assert store.release_kernel("k0", Reason.USER_CANCELLED, "me", 3.0) is None
    assert now_of(store).workload.desired is Desired.RUNNING
    store.release_kernel("k1", Reason.USER_CANCELLED, "me", 4.0)
    assert now_of(store).workload.desired is Desired.STOPPED
    with pytest.raises(SessionEnded):
        store.bind_launch("w0", "k2", "l2", "", LeasePolicy(), 5.0)


# -- daemons -----------------------------------------------------------------------------------------------------------


def test_adoption_is_a_compare_and_set_on_the_beat_that_was_judged(store: Store) -> None:
    for heir in ("e", "f"):
        drivers.register(store, heir, "host", "boot", 2, 0.0)
    store.begin_submit(now_of(store).allocation, DAEMON, 2.0)
    (judged,) = drivers.other_drivers(store, "e")
    drivers.beat(store, DAEMON, 50.0)
    assert drivers.adopt(store, judged, "e", 61.0) == []
    (judged,) = drivers.other_drivers(store, "e")
    assert drivers.adopt(store, judged, "e", 120.0) == ["w0"]
    assert drivers.adopt(store, judged, "f", 120.0) == []
    assert store.driver_of("w0") == "e"
    assert now_of(store).allocation.submit_unknown_since == 120.0  # its call may still be on its way


def test_a_session_is_adopted_and_wished_stopped_in_one_commit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.open_session(new_session(1), DAEMON, 1.0)
    drivers.register(store, "e", "host", "boot", 2, 1.0)
    (dead,) = drivers.other_drivers(store, "e")
    wish = Store.wish_stopped

    def fails_at_the_second(self: Store, workload_id: str, *args: Any) -> bool:
        if workload_id == "w1":
            raise StateError("the disk is full")
        return wish(self, workload_id, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "wish_stopped", fails_at_the_second)
        with pytest.raises(StateError):
            drivers.adopt(store, dead, "e", 120.0)
    assert store.driver_of("w0") == store.driver_of("w1") == DAEMON, "none is adopted, so the next attempt finds both"
    assert sorted(drivers.adopt(store, dead, "e", 121.0)) == ["w0", "w1"]
    for each in ("w0", "w1"):
        workload = now_of(store, each).workload
        assert (workload.desired, workload.reason) == (Desired.STOPPED, Reason.SERVER_GONE)


def test_what_a_dead_process_left_behind_is_adopted_too(store: Store) -> None:
    end(store)
    drivers.register(store, "e", "host", "boot", 2, 0.0)
    (dead,) = drivers.other_drivers(store, "e")
    drivers.adopt(store, dead, "e", 120.0)
    assert [each.allocation_id for each in store.debris("e")] == ["a0"]
    assert drivers.other_drivers(store, "e") == []


# -- events (INV-12) ---------------------------------------------------------------------------------------------------


def test_events_are_appended_and_never_rewritten(store: Store) -> None:
    store.record("w0", "kept", "me", None, "x" * 10_000, 2.0)
    events = store.events("w0")
    assert [event.kind for event in events] == ["opened", "kept"]
    assert len(events[1].detail) <= 8192
    with pytest.raises(sqlite3.IntegrityError, match="never rewritten"):
        store.db._connection.execute("UPDATE event SET actor = 'somebody else'")
