"""A worker's scratch folder: private, found by name, and not left behind for ever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from openai4s_provisioner.worker.scratch import make_scratch, scratch_path


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
