"""A worker's scratch folder: private, found by name, and not left behind for ever."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from openai4s_provisioner.transport.locked_folder import remove_leftovers
from openai4s_provisioner.worker.scratch import make_scratch, scratch_parent, scratch_path


def test_it_is_private_and_lies_where_the_allocation_says() -> None:
    scratch = make_scratch("alloc", 0)
    assert scratch.path == scratch_path("alloc", 0)
    assert os.stat(scratch.path).st_mode & 0o777 == 0o700
    scratch.remove()
    assert not os.path.exists(scratch.path)


def test_what_a_dead_worker_left_is_removed_and_what_a_living_one_uses_is_not() -> None:
    living, dead = make_scratch("living", 0), make_scratch("dead", 0)
    (Path(dead.path) / "spool").write_bytes(b"x")
    os.close(dead._lock)
    other = make_scratch("other", 1)
    assert os.path.exists(living.path)
    assert not os.path.exists(dead.path)
    living.remove()
    other.remove()


def test_a_folder_that_is_just_being_made_is_not_taken_for_a_dead_worker_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many workers start at once on one node, and each sweeps; the lock of a new folder comes an instant late."""
    lock = fcntl.flock

    def sweep_first(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        remove_leftovers(scratch_parent())
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    scratch = make_scratch("alloc", 0)
    assert os.path.exists(scratch.path)
    scratch.remove()


def test_what_died_while_it_was_made_is_removed_in_the_end() -> None:
    left = Path(tempfile.mkdtemp(prefix=f"o4s-{os.geteuid()}-new-", dir=scratch_parent()))
    (left / "lock").touch()
    os.utime(left, (0, 0))
    make_scratch("alloc", 0).remove()
    assert not left.exists()


def test_a_name_that_somebody_took_is_refused() -> None:
    taken = Path(scratch_path("alloc", 0))
    taken.mkdir()
    (taken / "theirs").write_text("x")
    with pytest.raises(OSError, match="not empty"):
        make_scratch("alloc", 0)


def test_a_long_temporary_folder_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 60)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert os.path.dirname(scratch_path("alloc", 0)) == "/tmp"
