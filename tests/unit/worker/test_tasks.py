"""Tasks of a worker, without a sandbox: what the server is told, and how far ahead of it the output may run."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from openai4s_provisioner.worker.output import Output
from openai4s_provisioner.worker.tasks import Tasks


class FakeCommand:
    def __init__(self, launch: Any, on_event: Callable[[dict[str, Any]], None], output: Output | None) -> None:
        assert output is not None
        self.launch, self.on_event, self.output = launch, on_event, output
        self.started = self.closed = self.held = False
        self.stopped: list[float] = []

    def start(self) -> None:
        self.started = True

    def stop(self, grace_s: float) -> None:
        self.stopped.append(grace_s)

    def hold_output(self, hold: bool) -> None:
        self.held = hold

    def close(self) -> None:
        self.closed = True

    def end(self, exit_code: int | None = 0, signal: int | None = None, **more: str) -> None:
        self.on_event({"type": "kernel_exited", "exit_code": exit_code, "signal": signal, "tail": "", **more})


class Bench:
    def __init__(self) -> None:
        self.commands: list[FakeCommand] = []
        self.told: list[dict[str, Any]] = []
        self.changes = 0
        self.tasks = Tasks(self._make, lambda: {"HOME": "/h"}, self.told.append, self._changed)

    def _make(self, launch: Any, on_event: Any, output: Output | None) -> FakeCommand:
        self.commands.append(FakeCommand(launch, on_event, output))
        return self.commands[-1]

    def _changed(self) -> None:
        self.changes += 1

    def task(self, task_id: str = "t") -> FakeCommand:
        self.tasks.hear({"type": "task", "task_id": task_id, "argv": ["true"], "cwd": "/w"})
        return self.commands[-1]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_task_runs_once_with_the_kernel_s_environment(bench: Bench) -> None:
    command = bench.task()
    bench.task()
    assert len(bench.commands) == 1
    assert command.started
    assert command.launch["env"] == {"HOME": "/h"}
    assert command.launch["key"] == "", "it is a command: it has no channels"


def test_its_output_comes_before_its_end_and_nothing_after(bench: Bench) -> None:
    command = bench.task()
    command.output.feed(b"x" * 40_000)
    command.end(3)
    kinds = [message["type"] for message in bench.told]
    assert kinds == ["task_output", "task_output", "task_ended"]
    assert b"".join(base64.b64decode(m["data"]) for m in bench.told[:-1]) == b"x" * 40_000
    assert (bench.told[-1]["exit_code"], bench.told[-1]["signal"]) == (3, None)
    assert command.closed
    assert not bench.tasks.are_running
    assert bench.changes == 1


def test_a_task_whose_output_nobody_takes_waits(bench: Bench) -> None:
    command = bench.task()
    while not command.held:
        assert len(bench.told) < 100
        command.output.feed(b"x" * 16_384)
    sent = sum(len(base64.b64decode(message["data"])) for message in bench.told)
    assert 200_000 < sent < 400_000
    bench.tasks.hear({"type": "task_ack", "task_id": "t", "received": 10**12})
    assert not command.held


def test_cancelling_asks_in_the_task_s_own_time(bench: Bench) -> None:
    command = bench.task()
    bench.tasks.hear({"type": "task_cancel", "task_id": "another"})
    assert command.stopped == []
    bench.tasks.hear({"type": "task_cancel", "task_id": "t"})
    assert command.stopped == [5.0]


def test_what_the_launcher_said_is_the_cause_of_a_bad_end_alone(bench: Bench) -> None:
    bench.task("well").end(0, launcher="slow today")
    bench.task("badly").end(1, launcher="no copy on node 7")
    known = bench.task("known")
    known.on_event({"type": "workspace", "ok": False, "detail": "the folder is missing"})
    known.end(1, launcher="copy 0 exited with 1")
    asked = bench.task("asked")
    bench.tasks.hear({"type": "task_cancel", "task_id": "asked"})
    asked.end(143, launcher="ended on request")
    problems = {message["task_id"]: message["problem"] for message in bench.told if message["type"] == "task_ended"}
    assert problems == {
        "well": "",
        "badly": "The launcher said: no copy on node 7",
        "known": "the folder is missing",
        "asked": "",
    }


def test_when_the_session_ends_all_are_stopped_and_none_begins(bench: Bench) -> None:
    running = bench.task("a")
    bench.tasks.hear({"type": "task_cancel_all"})
    assert running.stopped
    bench.task("b")
    assert len(bench.commands) == 1
    assert bench.told == [
        {
            "type": "task_ended",
            "task_id": "b",
            "exit_code": None,
            "signal": None,
            "problem": "The session was ending.",
        }
    ]


def test_an_unproven_sandbox_is_said(bench: Bench) -> None:
    command = bench.task()
    command.on_event({"type": "isolation", "ok": False, "sentence": "It leaks.", "attacks": {}})
    command.end(None)
    assert bench.told[-1]["problem"] == "It leaks."
