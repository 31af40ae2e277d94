"""The attempt file is taken once, and only when nobody else could have read or written it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner.worker.attempt import AttemptUnusable, take_attempt

GOOD: dict[str, Any] = {
    "version": 1,
    "workload_id": "w",
    "allocation_id": "a",
    "epoch": 1,
    "rank": 0,
    "ranks": 1,
    "credential": "SECRET-CREDENTIAL",
    "addresses": ["unix:/x/gw.sock"],
    "certificate_sha256": None,
    "workspace": {"path": "/w", "nonce_name": "n"},
    "sandbox": {},
    "launch": None,
    "server_grace_s": 60,
}


def put(folder: Path, content: Any, mode: int = 0o600) -> Path:
    path = folder / "rank-0.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    path.chmod(mode)
    return path


def test_it_is_read_and_gone(tmp_path: Path) -> None:
    path = put(tmp_path, GOOD)
    attempt = take_attempt(str(tmp_path), 0)
    assert (attempt.credential, attempt.addresses, attempt.server_grace_s) == (
        "SECRET-CREDENTIAL",
        ("unix:/x/gw.sock",),
        60,
    )
    assert not path.exists()
    with pytest.raises(AttemptUnusable):
        take_attempt(str(tmp_path), 0)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o700])
def test_a_file_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    put(tmp_path, GOOD, mode)
    with pytest.raises(AttemptUnusable, match="0600"):
        take_attempt(str(tmp_path), 0)


def test_a_link_to_elsewhere_is_refused(tmp_path: Path) -> None:
    real = put(tmp_path, GOOD).rename(tmp_path / "real.json")
    (tmp_path / "rank-0.json").symlink_to(real)
    with pytest.raises(AttemptUnusable):
        take_attempt(str(tmp_path), 0)


def test_a_file_with_a_second_name_is_refused(tmp_path: Path) -> None:
    os.link(put(tmp_path, GOOD), tmp_path / "kept.json")
    with pytest.raises(AttemptUnusable, match="one name"):
        take_attempt(str(tmp_path), 0)


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-0.json", 0o600)
    with pytest.raises(AttemptUnusable):
        take_attempt(str(tmp_path), 0)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a file away")
def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    os.chown(put(tmp_path, GOOD), 65534, -1)
    with pytest.raises(AttemptUnusable, match="this user"):
        take_attempt(str(tmp_path), 0)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        "[" * 100000,
        {**GOOD, "version": 2},
        {**GOOD, "rank": 1},
        {**GOOD, "addresses": []},
        {**GOOD, "addresses": "unix:/x"[:0]},
        {**GOOD, "credential": None},
        {**GOOD, "launch": 3},
        {name: value for name, value in GOOD.items() if name != "sandbox"},
    ],
)
def test_a_malformed_one_is_refused_without_quoting_it(tmp_path: Path, content: Any) -> None:
    put(tmp_path, content)
    with pytest.raises(AttemptUnusable) as refused:
        take_attempt(str(tmp_path), 0)
    assert "SECRET" not in str(refused.value)
    assert "rank-0.json" in str(refused.value)


def test_a_representation_shows_no_secret(tmp_path: Path) -> None:
    put(tmp_path, {**GOOD, "launch": {"launch_id": "l", "env": {"HF_TOKEN": "SECRET-TOKEN"}}})
    assert "SECRET" not in repr(take_attempt(str(tmp_path), 0))
