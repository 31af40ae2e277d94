"""Leases as rows: a file from before they had clocks, and a keep and a sweep from two processes at one moment."""

from __future__ import annotations

import contextlib
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from openai4s_provisioner.orchestration.errors import Refused, SessionEnded
from openai4s_provisioner.orchestration.leases import Activity, Expire
from openai4s_provisioner.orchestration.models import Desired, ExternalHandle, LeasePolicy
from openai4s_provisioner.orchestration.phases import PhaseEvent
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.store import Store, drivers, leases, tasks
from openai4s_provisioner.orchestration.store.sqlite import MIGRATIONS, migrate
from openai4s_provisioner.orchestration.store.tasks import NewTask

from .conftest import DAEMON, new_session

TTL_S = 10


def active_store(folder: Path, busy_counts: bool = True) -> Store:
    """One session whose kernel is ready and idle since 1.0."""
    store = Store(folder)
    drivers.register(store, DAEMON, "host", "boot", 1, 0.0)
    store.open_session(new_session(leases=LeasePolicy(idle_ttl_s=TTL_S, busy_counts=busy_counts)), DAEMON, 1.0)
    store.handle_known("a0", ExternalHandle("fake", "1"))
    store.advance("a0", PhaseEvent.GRANTED, 1.0)
    store.kernel_ready("l0", 1.0)
    store.advance("a0", PhaseEvent.READY, 1.0)
    leases.activity(store, "l0", Activity.IDLE, False, 1.0)
    return store


def test_a_lease_from_before_the_clocks_is_carried_forward() -> None:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, Path("x"), {1: MIGRATIONS[1]})
        connection.execute("INSERT INTO lease VALUES ('w', 'k', 60, 600, 1.0, 2.0)")
        migrate(connection, Path("x"), MIGRATIONS)
        columns = "idle_ttl_s, last_active_at, warn_s, busy_counts, activity, started_at"
        row = connection.execute(f"SELECT {columns} FROM lease").fetchone()
        assert row == (60, 2.0, 600, 1, "unknown", None)


def test_of_a_keep_and_a_sweep_at_one_moment_exactly_one_wins(tmp_path: Path) -> None:
    outcomes = set()
    for number in range(30):
        folder = tmp_path / str(number)
        active_store(folder).close()
        barrier = Barrier(2)

        def keeps(folder: Path = folder, barrier: Barrier = barrier) -> bool:
            with contextlib.closing(Store(folder)) as store:
                barrier.wait(10)
                try:
                    leases.keep(store, "k0", "me", 1.0 + TTL_S)
                except SessionEnded:
                    return False
                return True

        def sweeps(folder: Path = folder, barrier: Barrier = barrier) -> bool:
            with contextlib.closing(Store(folder)) as store:
                barrier.wait(10)
                return isinstance(leases.sweep(store, "w0", 1.0 + TTL_S), Expire)

        with ThreadPoolExecutor(2) as pool:
            kept, swept = pool.submit(keeps), pool.submit(sweeps)
            outcomes.add(kept.result(20))
            assert kept.result(20) is not swept.result(20)
        with contextlib.closing(Store(folder)) as store:
            workload = store.workload("w0")
            assert workload is not None
            assert workload.desired is (Desired.STOPPED if swept.result(0) else Desired.RUNNING)
    assert outcomes, "they met"


def test_a_keep_is_recorded_with_who_and_an_unknown_kernel_is_refused(tmp_path: Path) -> None:
    with contextlib.closing(active_store(tmp_path / "state")) as store:
        assert leases.held_kernels(store) == ["k0"]
        kept = leases.keep(store, "k0", "somebody", 5.0)
        assert kept.until is not None
        assert kept.until.at == 5.0 + TTL_S
        (event,) = [event for event in store.events("w0") if event.kind == "kept"]
        assert (event.actor, event.detail) == ("somebody", "k0")
        with pytest.raises(Refused, match="No session holds"):
            leases.keep(store, "another", "somebody", 5.0)
        store.release_kernel("k0", kept.until.reason, "me", 6.0)
        with pytest.raises(Refused, match="No session holds"):
            leases.keep(store, "k0", "somebody", 6.0)


def test_a_clock_that_goes_backwards_shortens_nothing(tmp_path: Path) -> None:
    with contextlib.closing(active_store(tmp_path / "state")) as store:
        leases.keep(store, "k0", "me", 100.0)
        leases.keep(store, "k0", "me", 50.0)
        leases.activity(store, "l0", Activity.IDLE, True, 20.0)
        ((lease,),) = leases.running(store, DAEMON)
        assert lease.last_active_at == 100.0


@pytest.mark.parametrize(("column", "value"), [("warn_s", -1), ("activity", "'asleep'"), ("busy_counts", 2)])
def test_the_schema_refuses_what_is_no_lease(tmp_path: Path, column: str, value: object) -> None:
    with contextlib.closing(active_store(tmp_path / "state")) as store, pytest.raises(sqlite3.IntegrityError):
        store.db._connection.execute(f"UPDATE lease SET {column} = {value}")


@pytest.mark.parametrize("busy_counts", [True, False])
def test_a_step_beside_the_kernel_is_activity_as_a_cell_is(tmp_path: Path, busy_counts: bool) -> None:
    with contextlib.closing(active_store(tmp_path, busy_counts)) as store:
        tasks.open_task(store, NewTask("t1", "w0", "me", ("sleep", "100"), "/"), 5.0)
        ((waiting,),) = leases.running(store, DAEMON)
        assert waiting.last_active_at == 1.0, "one that does not run yet is none"
        tasks.started(store, "t1", 6.0)
        ((running,),) = leases.running(store, DAEMON)
        assert running.last_active_at == 6.0, "that somebody had it started is"
        end = leases.sweep(store, "w0", 6.0 + TTL_S + 1)
        assert isinstance(end, Expire) is not busy_counts
        if busy_counts:
            tasks.ended(store, "t1", 0, None, "", 100.0)
            tasks.ended(store, "t1", 0, None, "", 200.0)  # a repeated word renews nothing
            assert isinstance(leases.sweep(store, "w0", 100.0 + TTL_S), Expire)
            assert store.situation("w0") is not None


def test_a_step_does_not_keep_a_session_beyond_its_longest_life(tmp_path: Path) -> None:
    with contextlib.closing(active_store(tmp_path)) as store:
        tasks.open_task(store, NewTask("t1", "w0", "me", ("sleep", "100"), "/"), 5.0)
        tasks.started(store, "t1", 6.0)
        end = leases.sweep(store, "w0", 1.0 + LeasePolicy().max_lifetime_s)
        assert isinstance(end, Expire)
        assert end.deadline.reason is Reason.SESSION_MAX_LIFETIME_EXCEEDED
