"""What the store keeps of commands, and what its schema refuses."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.errors import Refused
from openai4s_provisioner.orchestration.models import BatchSpec, CommandExit, Kind, Phase
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.store import Ending, NewBatch, Store, batches, drivers

from .conftest import DAEMON

SPEC = BatchSpec("/work", "/work", ("echo", "a b"), installation=("/opt/x",))


def new_batch(number: int, most: int = 10) -> NewBatch:
    return NewBatch(f"b{number}", f"ba{number}", f"{number:040d}", "me", "p", "fake", SPEC, most)


def test_a_command_reads_as_it_was_written(store: Store) -> None:
    batches.open_batch(store, new_batch(1), DAEMON, 5.0)
    entry = batches.listed(store, "b1")
    assert entry is not None
    assert (entry.now.workload.kind, entry.now.workload.spec, entry.ended) == (Kind.BATCH, SPEC, None)
    assert entry.now.bindings == ()


def test_the_limit_is_counted_in_the_same_commit_and_sessions_do_not_count(store: Store) -> None:
    batches.open_batch(store, new_batch(1, most=1), DAEMON, 5.0)
    with pytest.raises(Refused) as caught:
        batches.open_batch(store, new_batch(2, most=1), DAEMON, 5.0)
    assert caught.value.reason is Reason.QUOTA_EXCEEDED
    assert batches.listed(store, "b2") is None
    assert store.active_sessions("me") == 1


def test_how_a_command_ended_is_never_rewritten(store: Store) -> None:
    batches.open_batch(store, new_batch(1), DAEMON, 5.0)
    batches.record_exit(store, "ba1", CommandExit(3, None, 6.0, started_at=5.5))
    batches.record_exit(store, "ba1", CommandExit(0, None, 7.0))
    entry = batches.listed(store, "b1")
    assert entry is not None
    assert entry.ended == CommandExit(3, None, 6.0, started_at=5.5)
    with pytest.raises(sqlite3.IntegrityError, match="never rewritten"):
        store.db._connection.execute("UPDATE command_exit SET exit_code = 0")


def test_the_listing_holds_what_is_active_and_what_ended_lately(store: Store) -> None:
    for number in (1, 2, 3):
        batches.open_batch(store, new_batch(number), DAEMON, float(number))
    store.end("ba1", Ending(Phase.CANCELLED, Reason.USER_CANCELLED), 10.0)
    store.end("ba2", Ending(Phase.CANCELLED, Reason.USER_CANCELLED), 20.0)
    shown = [entry.now.workload.workload_id for entry in batches.listing(store, 15.0, False, 100)]
    assert sorted(shown) == ["b2", "b3", "w0"]
    assert len(batches.listing(store, 15.0, True, 100)) == 4
    assert batches.named(store, "b") == ["b3", "b2", "b1"]
    assert batches.named(store, "%") == []


def test_only_commands_can_be_adopted_alone(store: Store) -> None:
    batches.open_batch(store, new_batch(1), DAEMON, 5.0)
    drivers.register(store, "e", "host", "boot", 2, 6.0)
    (dead,) = drivers.other_drivers(store, "e")
    assert drivers.adopt(store, dead, "e", 7.0, Kind.BATCH) == ["b1"]
    assert store.driver_of("w0") == DAEMON
    assert drivers.adopt(store, dead, "e", 7.0) == ["w0"]


def test_a_state_file_of_the_first_version_is_brought_forward(tmp_path: Path) -> None:
    from openai4s_provisioner.orchestration.store.sqlite import APPLICATION_ID, MIGRATIONS, migrate

    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    old = sqlite3.connect(folder / "state.db", isolation_level=None)
    old.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    migrate(old, folder / "state.db", {1: MIGRATIONS[1]})
    old.close()
    store = Store(folder)
    drivers.register(store, DAEMON, "host", "boot", 1, 0.0)
    batches.open_batch(store, new_batch(1), DAEMON, 1.0)
    store.close()
