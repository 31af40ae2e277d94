"""Every way in which a workspace can be wrong has a name of its own."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner.worker.workspace_proof import check_folder, prove


def test_the_answer_holds_the_nonce(tmp_path: Path) -> None:
    (tmp_path / ".nonce").write_text("n0nce\n")
    proof = prove(str(tmp_path), ".nonce", 3, last_try=False)
    assert proof is not None
    assert (proof.ok, proof.code, proof.nonce, proof.answer_name) == (True, "ready", "n0nce", ".nonce.rank-3")
    assert (tmp_path / ".nonce.rank-3").read_text() == "n0nce"


def test_a_nonce_that_does_not_show_is_another_mount_only_at_the_last_try(tmp_path: Path) -> None:
    assert prove(str(tmp_path), ".nonce", 0, last_try=False) is None
    proof = prove(str(tmp_path), ".nonce", 0, last_try=True)
    assert proof is not None
    assert (proof.ok, proof.code) == (False, "wrong_mount")
    assert str(tmp_path) in proof.detail


def test_a_half_written_nonce_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / ".nonce").touch()
    assert prove(str(tmp_path), ".nonce", 0, last_try=False) is None


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EROFS, "read_only"),
        (errno.ENOSPC, "no_space"),
        (errno.EDQUOT, "no_space"),
        (errno.EACCES, "denied"),
        (errno.EPERM, "denied"),
        (errno.EIO, "unreadable"),
        (errno.ESTALE, "unreadable"),
    ],
)
def test_a_failing_answer_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    (tmp_path / ".nonce").write_text("n0nce")

    def fail(_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    proof = prove(str(tmp_path), ".nonce", 0, last_try=False)
    assert proof is not None
    assert (proof.ok, proof.code) == (False, code)
    assert not (tmp_path / ".nonce.rank-0").exists()


def test_a_missing_folder_and_a_file_are_missing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("nothing", "file"):
        found = check_folder(str(tmp_path / name))
        assert found is not None
        assert found.code == "missing"
    assert check_folder(str(tmp_path)) is None


def test_an_answer_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / ".nonce").write_text("n0nce")
    (tmp_path / ".nonce.rank-0").symlink_to(tmp_path / "elsewhere")
    proof = prove(str(tmp_path), ".nonce", 0, last_try=False)
    assert proof is not None
    assert not proof.ok
    assert not (tmp_path / "elsewhere").exists()
