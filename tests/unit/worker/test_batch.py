"""What the worker of a BATCH writes down, with a fake in place of the sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openai4s_provisioner.orchestration.batch_files import read_exit
from openai4s_provisioner.orchestration.models import CommandExit
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.transport.loop import Loop
from openai4s_provisioner.worker.attempt import BatchAttempt
from openai4s_provisioner.worker.batch import BatchWorker
from openai4s_provisioner.worker.exit_codes import ExitCode

PROVEN = {"type": "isolation", "ok": True, "sentence": "", "attacks": {}}
UNPROVEN = {"type": "isolation", "ok": False, "sentence": "It leaks.", "attacks": {}}


def exited(exit_code: int | None, signal: int | None = None) -> dict[str, Any]:
    return {"type": "kernel_exited", "exit_code": exit_code, "signal": signal, "tail": ""}


def workspace(nonce: str) -> dict[str, Any]:
    return {"type": "workspace", "ok": True, "code": "ready", "detail": "", "nonce": nonce, "answer_name": "n.rank-0"}


class Scripted:
    """A command whose events are given; `stop` says that it was asked."""

    def __init__(self, events: list[dict[str, Any]], on_event: Callable[[dict[str, Any]], None]) -> None:
        self.events, self.on_event = events, on_event
        self.stops: list[float] = []

    def start(self) -> None:
        for event in self.events:
            self.on_event(event)

    def stop(self, grace_s: float) -> None:
        self.stops.append(grace_s)

    def close(self) -> None:
        return


def run(folder: Path, *events: dict[str, Any], ask: bool = False) -> tuple[CommandExit | None, int]:
    work = folder / "work"
    work.mkdir()
    for name in ("n", "n.rank-0"):
        (work / name).write_text("nonce")
    place = {"path": str(work), "nonce_name": "n", "nonce": "nonce"}
    attempt = BatchAttempt("w", "a", 0, place, {}, {"launch_id": "command", "argv": ["true"]})

    def make(launch: Any, on_event: Any, output: Any) -> Scripted:
        return Scripted(list(events), on_event)

    worker = BatchWorker(Loop(), attempt, str(folder), make)  # type: ignore[arg-type]
    if ask:
        worker.end("signal SIGTERM")
    status = worker.run()
    if any(event["type"] == "workspace" for event in events):
        assert list(work.iterdir()) == [], "the proof is taken away"
    return read_exit(folder), status


def test_how_the_command_ended_is_written_down_and_the_worker_ends_well(tmp_path: Path) -> None:
    ended, status = run(tmp_path, PROVEN, workspace("nonce"), {"type": "kernel_started", "pid": 1}, exited(3))
    assert ended is not None
    assert (ended.exit_code, ended.signal, ended.asked, ended.reason) == (3, None, "", None)
    assert ended.started_at is not None
    assert status == ExitCode.ENDED


def test_an_unproven_sandbox_is_the_reason(tmp_path: Path) -> None:
    ended, _ = run(tmp_path, UNPROVEN, exited(None, 9))
    assert ended is not None
    assert (ended.reason, ended.detail) == (Reason.ISOLATION_UNVERIFIED, "It leaks.")


def test_a_proof_that_was_cut_short_by_a_stop_accuses_nobody(tmp_path: Path) -> None:
    ended, _ = run(tmp_path, UNPROVEN, exited(None, 9), ask=True)
    assert ended is not None
    assert (ended.reason, ended.asked, ended.signal) == (None, "signal SIGTERM", 9)


def test_another_folder_in_the_workspace_s_place_is_the_reason(tmp_path: Path) -> None:
    ended, _ = run(tmp_path, PROVEN, workspace("another"), exited(None, 9))
    assert ended is not None
    assert ended.reason is Reason.WORKSPACE_UNREACHABLE


def test_what_cannot_be_written_down_is_said_by_the_worker_s_own_exit(tmp_path: Path) -> None:
    (tmp_path / "exit.json").mkdir()
    ended, status = run(tmp_path, PROVEN, exited(0))
    assert ended is None
    assert status == ExitCode.UNRECORDED


def test_a_record_that_is_not_ours_is_no_record(tmp_path: Path) -> None:
    for content in ("", "[]", "{}", json.dumps({"exit_code": "x", "signal": None, "ended_at": 1, "asked": ""})):
        (tmp_path / "exit.json").write_text(content)
        assert read_exit(tmp_path) is None
