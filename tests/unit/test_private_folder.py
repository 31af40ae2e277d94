"""Folders that several processes clear: a job's script, a server and a command may all be at it at once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner.orchestration.private_folder import remove_folder


def test_somebody_else_who_clears_the_same_folder_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "attempt"
    folder.mkdir()
    for name in ("job.started", "worker-0.log"):
        (folder / name).touch()
    clear = shutil.rmtree

    def clear_where_a_file_is_gone_meanwhile(path: Path, *options: Any) -> None:
        monkeypatch.setattr(shutil, "rmtree", clear)
        os.unlink(folder / "job.started")
        os.unlink(folder / "job.started")

    monkeypatch.setattr(shutil, "rmtree", clear_where_a_file_is_gone_meanwhile)
    remove_folder(folder)
    assert not folder.exists()
    remove_folder(folder)
