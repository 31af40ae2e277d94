"""Tasks as rows: only in a live allocation, ended once, and never longer than what they run in."""

from __future__ import annotations

import sqlite3

import pytest

from openai4s_provisioner.orchestration.errors import Refused
from openai4s_provisioner.orchestration.models import ExternalHandle, Phase
from openai4s_provisioner.orchestration.phases import PhaseEvent
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.store import Ending, Store, tasks
from openai4s_provisioner.orchestration.store.tasks import NewTask

from .conftest import DAEMON


@pytest.fixture
def granted(store: Store) -> Store:
    situation = store.situation("w0")
    assert situation is not None
    assert store.begin_submit(situation.allocation, DAEMON, 2.0)
    store.handle_known("a0", ExternalHandle("fake", "h"))
    store.advance("a0", PhaseEvent.GRANTED, 3.0)
    return store


def test_without_a_live_allocation_a_task_is_refused_and_nothing_is_submitted(store: Store) -> None:
    before = store.situations(DAEMON)
    with pytest.raises(Refused, match="holds no allocation"):
        tasks.open_task(store, NewTask("t1", "w0", "me", ("true",), "/"), 5.0)
    assert store.situations(DAEMON) == before
    assert tasks.open_tasks(store) == []


def test_the_schema_itself_refuses_it(store: Store) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="live allocation"):
        store.db.write(
            "insert_task",
            task_id="t",
            workload_id="w0",
            allocation_id="a0",
            actor="me",
            argv="[]",
            cwd="/",
            every_rank=0,
            now=1.0,
        )


def test_none_begins_once_a_stop_is_wished(granted: Store) -> None:
    granted.request_stop("w0", Reason.USER_CANCELLED, "", "me", 4.0)
    with pytest.raises(Refused):
        tasks.open_task(granted, NewTask("t1", "w0", "me", ("true",), "/"), 5.0)


def test_a_task_reads_as_it_was_written_and_belongs_to_its_driver(granted: Store) -> None:
    task = tasks.open_task(granted, NewTask("t1", "w0", "me", ("echo", "a b"), "/there"), 5.0)
    assert (task.argv, task.cwd, task.allocation_id, task.ended_at) == (("echo", "a b"), "/there", "a0", None)
    assert tasks.open_tasks(granted, DAEMON) == [task] == tasks.open_tasks(granted)
    assert tasks.open_tasks(granted, "another") == []


def test_the_first_end_and_the_first_cancel_stay(granted: Store) -> None:
    tasks.open_task(granted, NewTask("t1", "w0", "me", ("true",), "/"), 5.0)
    tasks.cancel(granted, "t1", "me", 6.0)
    tasks.cancel_all(granted, "a0", "reconciler", 7.0)
    tasks.ended(granted, "t1", None, 15, "", 8.0)
    tasks.ended(granted, "t1", 0, None, "", 9.0)
    tasks.cancel(granted, "t1", "me", 10.0)
    task = tasks.task(granted, "t1")
    assert task is not None
    assert (task.cancel_asked_at, task.ended_at, task.signal, task.exit_code) == (6.0, 8.0, 15, None)
    with pytest.raises(sqlite3.IntegrityError, match="never rewritten"):
        granted.db._connection.execute("UPDATE task SET exit_code = 0")


def test_a_task_ends_with_its_allocation_in_the_same_commit(granted: Store) -> None:
    tasks.open_task(granted, NewTask("t1", "w0", "me", ("true",), "/"), 5.0)
    granted.end("a0", Ending(Phase.FAILED, Reason.NODE_FAILED), 9.0)
    task = tasks.task(granted, "t1")
    assert task is not None
    assert (task.ended_at, task.detail) == (9.0, "Its session ended.")


def test_so_many_tasks_run_in_one_session_and_no_more(granted: Store) -> None:
    for number in range(tasks.MOST_OPEN):
        tasks.open_task(granted, NewTask(f"t{number}", "w0", "me", ("true",), "/"), 5.0)
    with pytest.raises(Refused) as caught:
        tasks.open_task(granted, NewTask("more", "w0", "me", ("true",), "/"), 5.0)
    assert caught.value.reason is Reason.QUOTA_EXCEEDED
