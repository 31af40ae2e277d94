"""A task on every rank, without a sandbox: what the launcher is given, what it leaves, and how lines are told apart."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner.transport.loop import Loop
from openai4s_provisioner.worker.attempt import AttemptUnusable
from openai4s_provisioner.worker.rank_steps import RankSteps
from openai4s_provisioner.worker.step import RankLines, read_step

LAUNCH = {
    "launch_id": "t1",
    "argv": ["train", "--key", "hunter2"],
    "env": {"HF_TOKEN": "hunter2"},
    "cwd": "/w",
    "key": "",
}
Turn = Callable[[Callable[[], Any], str], None]


class Heard:
    def __init__(self) -> None:
        self.text = b""
        self.events: list[dict[str, Any]] = []
        self.is_closed = False

    def feed(self, data: bytes) -> None:
        self.text += data

    def tail(self) -> str:
        return self.text.decode()

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def turn(loop: Loop, wait_until: Any) -> Turn:
    def until(condition: Callable[[], Any], what: str) -> None:
        def turned() -> Any:
            loop.call_later(0.01, int)
            loop._turn()
            return condition()

        wait_until(turned, what)

    return until


def steps(loop: Loop, folder: Path, *prefix: str) -> RankSteps:
    common = {"sandbox": {}, "workspace": {"path": "/w", "nonce_name": ""}, "gpus": 0}
    return RankSteps(loop, prefix=prefix, folder=str(folder), ranks=4, program="/worker.pyz", common=common)


def test_the_launcher_is_given_our_program_and_a_private_file_and_no_word_of_a_person(
    loop: Loop, tmp_path: Path, turn: Turn
) -> None:
    heard = Heard()
    shown = "import os, sys, stat; print(sys.argv[1:], oct(stat.S_IMODE(os.stat(sys.argv[-1]).st_mode)))"
    step = steps(loop, tmp_path, sys.executable, "-c", shown)(LAUNCH, heard.events.append, heard)
    step.start()
    assert heard.events == [{"type": "kernel_started"}]
    path = tmp_path / "step-t1.json"
    content = json.loads(path.read_text())
    assert (content["launch"], content["ranks"], content["task_id"]) == (LAUNCH, 4, "t1")
    turn(lambda: heard.events[1:], "the launcher to end")
    assert heard.text.decode().strip() == f"{[sys.executable, '-I', '/worker.pyz', 'step', str(path)]} 0o600"
    assert heard.events[1]["exit_code"] == 0
    assert heard.is_closed
    step.close()
    assert not path.exists(), "what it was to run is taken away"


@pytest.mark.parametrize(
    ("program", "exit_code", "signal"),
    [("raise SystemExit(7)", 7, None), ("import os; os.kill(os.getpid(), 9)", None, 9)],
)
def test_it_ends_as_the_launcher_does(
    loop: Loop, tmp_path: Path, turn: Turn, program: str, exit_code: int | None, signal: int | None
) -> None:
    heard = Heard()
    step = steps(loop, tmp_path, sys.executable, "-c", program)(LAUNCH, heard.events.append, heard)
    step.start()
    turn(lambda: heard.events[1:], "the launcher to end")
    assert (heard.events[1]["exit_code"], heard.events[1]["signal"]) == (exit_code, signal)
    step.close()


def test_what_the_launcher_says_is_no_output_and_comes_with_the_end(loop: Loop, tmp_path: Path, turn: Turn) -> None:
    heard = Heard()
    talks = "import sys; print('result'); print('no copy on node 7', file=sys.stderr); sys.exit(1)"
    step = steps(loop, tmp_path, sys.executable, "-c", talks)(LAUNCH, heard.events.append, heard)
    step.start()
    turn(lambda: heard.events[1:], "the launcher to end")
    assert heard.text == b"result\n"
    assert heard.events[1]["launcher"] == "no copy on node 7"
    step.close()


def test_a_launcher_that_talks_without_end_is_heard_out_and_its_last_words_are_kept(
    loop: Loop, tmp_path: Path, turn: Turn
) -> None:
    heard = Heard()
    talks = "import sys; [print('retrying', n, file=sys.stderr) for n in range(100_000)]; sys.exit(1)"
    step = steps(loop, tmp_path, sys.executable, "-c", talks)(LAUNCH, heard.events.append, heard)
    step.start()
    step.hold_output(True)  # the reader of the output is slow, which is no reason to hold the launcher up
    turn(lambda: step._words_pipe < 0, "the launcher to have said it all")
    step.hold_output(False)
    turn(lambda: heard.events[1:], "the launcher to end")
    assert heard.events[1]["launcher"].endswith("retrying 99999")
    assert len(heard.events[1]["launcher"]) <= 1500
    step.close()


def test_a_launcher_that_cannot_be_started_is_said(loop: Loop, tmp_path: Path, turn: Turn) -> None:
    heard = Heard()
    step = steps(loop, tmp_path, str(tmp_path / "absent"))(LAUNCH, heard.events.append, heard)
    step.start()
    turn(lambda: heard.events, "the end")
    assert "cannot be started on every rank" in heard.events[0]["launcher"]
    assert heard.text == b""
    assert heard.events[0]["exit_code"] is None
    step.close()


def test_it_is_asked_to_end_before_it_is_made_to(
    loop: Loop, tmp_path: Path, turn: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openai4s_provisioner.worker.rank_steps._COPIES_GRACE_S", 0.2)
    heard = Heard()
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    step = steps(loop, tmp_path, sys.executable, "-c", deaf)(LAUNCH, heard.events.append, heard)
    step.start()
    turn(lambda: heard.text, "the launcher to run")
    step.stop(0.1)
    turn(lambda: heard.events[1:], "the launcher to end")
    assert heard.events[1]["signal"] == 9
    step.close()


# -- one rank's copy ---------------------------------------------------------------------------------------------------


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def test_every_line_stands_behind_its_rank_and_none_is_torn(loop: Loop, pipe: tuple[int, int]) -> None:
    lines = RankLines(loop, pipe[1], 3)
    lines.feed(b"one\ntw")
    lines.feed(b"o\n\nunfin")
    assert os.read(pipe[0], 1000) == b"[3] one\n[3] two\n[3] \n"
    lines.feed(b"ished")
    lines.close()
    assert os.read(pipe[0], 1000) == b"[3] unfinished\n"


def test_a_line_without_end_is_cut_and_not_kept_for_ever(loop: Loop, pipe: tuple[int, int]) -> None:
    lines = RankLines(loop, pipe[1], 0)
    lines.feed(b"x" * 5000)
    assert os.read(pipe[0], 10_000) == b"[0] " + b"x" * 5000 + b"\n"
    assert lines._line == b""


def test_a_slow_reader_holds_the_command_and_nothing_is_lost(loop: Loop, pipe: tuple[int, int], turn: Turn) -> None:
    lines = RankLines(loop, pipe[1], 1)
    held: list[bool] = []
    lines.flow = held.append
    done: list[bool] = []
    sent = b"".join(b"%0100d\n" % number for number in range(6000))
    lines.feed(sent)
    assert held == [True], "more than the reader may be behind"
    lines.finish(lambda: done.append(True))
    got = b""
    while not done:
        got += os.read(pipe[0], 65536)
        turn(lambda: True, "a turn")
    while len(got) < len(sent) + 6000 * 4:
        got += os.read(pipe[0], 65536)
    assert got.replace(b"[1] ", b"") == sent
    assert held[-1] is False


def test_a_reader_that_went_away_ends_the_copy(loop: Loop) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    lines = RankLines(loop, writing, 0)
    done: list[bool] = []
    lines.feed(b"to nobody\n")
    lines.finish(lambda: done.append(True))
    assert done == [True]
    os.close(writing)


def test_a_file_that_others_could_read_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai4s_provisioner.worker.step._FILE_SHOWS_S", 0.0)
    path = tmp_path / "step.json"
    content = {"task_id": "t", "ranks": 2, "workspace": {}, "sandbox": {}, "launch": {"argv": ["x"]}}
    path.write_text(json.dumps(content))
    path.chmod(0o640)
    with pytest.raises(AttemptUnusable, match="mode 0600"):
        read_step(str(path))
    path.chmod(0o600)
    assert read_step(str(path)).ranks == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "the other ranks read it as well"
    assert "argv" not in repr(read_step(str(path)))
    path.write_text('{"task_id": 1}')
    with pytest.raises(AttemptUnusable, match="cannot be understood"):
        read_step(str(path))
    with pytest.raises(AttemptUnusable, match="No such file"):
        read_step(str(tmp_path / "absent"))
