"""The server's side of the workspace proof: an answer is read with suspicion, and everything is taken away again."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.workspace_proof import (
    answer_holds,
    answer_name,
    nonce_name,
    place_nonce,
    remove_proofs,
)


def test_an_answer_with_the_nonce_is_the_proof(tmp_path: Path) -> None:
    place_nonce(tmp_path, "a", "nonce")
    assert stat.S_IMODE((tmp_path / nonce_name("a")).stat().st_mode) == 0o600
    assert not answer_holds(tmp_path, "a", 0, "nonce")
    (tmp_path / answer_name("a", 0)).write_text("nonce")
    assert answer_holds(tmp_path, "a", 0, "nonce")
    assert not answer_holds(tmp_path, "a", 0, "another")
    assert not answer_holds(tmp_path, "a", 1, "nonce")
    remove_proofs(tmp_path, "a", 2)
    assert list(tmp_path.iterdir()) == []
    remove_proofs(tmp_path / "gone", "a", 2)


def test_a_nonce_is_placed_anew_even_over_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    os.symlink(tmp_path / "victim", tmp_path / nonce_name("a"))
    place_nonce(tmp_path, "a", "nonce")
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("nonce")
    os.symlink(tmp_path / "elsewhere", tmp_path / answer_name("a", 0))
    with pytest.raises(OSError, match="symbolic links"):
        answer_holds(tmp_path, "a", 0, "nonce")


def test_a_pipe_does_not_hang_and_is_no_answer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / answer_name("a", 0))
    assert not answer_holds(tmp_path, "a", 0, "nonce")


def test_a_huge_answer_is_not_read_whole(tmp_path: Path) -> None:
    (tmp_path / answer_name("a", 0)).write_bytes(b" " * (1 << 20) + b"nonce")
    assert not answer_holds(tmp_path, "a", 0, "nonce")
