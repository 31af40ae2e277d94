"""What a worker tells of the use of its machine, and how seldom: over a made-up /proc, and over the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner.transport.loop import Loop
from openai4s_provisioner.worker.usage import Accelerators, ProcessUse, UsageWatch, parsed

TICKS = os.sysconf("SC_CLK_TCK")


def process(proc: Path, pid: int, parent: int, ticks: int, anon_kb: int, shmem_kb: int = 0, started: int = 5) -> None:
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    rest = ["S", str(parent), *["0"] * 9, str(ticks), "0", *["0"] * 6, str(started), "0"]
    (folder / "stat").write_text(f"{pid} (a (name) of) {' '.join(rest)}\n")
    (folder / "status").write_text(f"VmRSS:\t 999999 kB\nRssAnon:\t {anon_kb} kB\nRssShmem:\t {shmem_kb} kB\n")


def test_the_descendants_count_and_the_worker_itself_does_not(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, 500, 999_999)
    process(tmp_path, 11, 10, 0, 1024)
    process(tmp_path, 12, 11, 0, 2048, shmem_kb=1024)
    process(tmp_path, 20, 1, 10_000, 999_999)
    use = ProcessUse(10, str(tmp_path))
    assert use.look(100.0) == (0.0, 4 * 1024 * 1024)
    process(tmp_path, 12, 11, 2 * TICKS, 2048)
    process(tmp_path, 13, 12, TICKS, 0)  # it was not there before, so it has used all of that since
    percent, memory = use.look(101.0)
    assert percent == pytest.approx(300.0)
    assert memory == 3 * 1024 * 1024
    process(tmp_path, 12, 1, 2 * TICKS, 0)  # it left the tree
    assert use.look(102.0)[0] == 0.0


def test_a_process_that_took_a_used_pid_counts_anew(tmp_path: Path) -> None:
    process(tmp_path, 11, 10, 50 * TICKS, 0, started=1)
    use = ProcessUse(10, str(tmp_path))
    use.look(0.0)
    process(tmp_path, 11, 10, TICKS, 0, started=2)
    assert use.look(1.0)[0] == pytest.approx(100.0)


def test_this_process_s_own_child_is_measured() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "x = bytearray(64 << 20); print(1, flush=True); input()"], stdin=-1, stdout=-1
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        _, memory = ProcessUse(os.getpid()).look(0.0)
        assert memory > 64 << 20
    finally:
        child.communicate(b"\n")


def test_the_tool_s_lines_are_read_and_what_it_does_not_know_is_nothing() -> None:
    assert parsed("35, 1024\n [N/A] , 5\nrubbish\n") == [
        {"index": 0, "percent": 35, "memory_mb": 1024},
        {"index": 1, "percent": 0, "memory_mb": 5},
    ]


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def turn_until(loop: Loop, condition: Any, wait_until: Any, what: str) -> None:
    def turned() -> bool:
        loop.call_later(0.02, int)
        loop._turn()
        return bool(condition())

    wait_until(turned, what)


def test_the_tool_is_asked_for_the_granted_ones_only_and_not_waited_for(
    loop: Loop, tmp_path: Path, wait_until: Any
) -> None:
    tool = tmp_path / "smi"
    tool.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho "70, 300"\n')
    tool.chmod(0o755)
    cards = Accelerators(loop, {"CUDA_VISIBLE_DEVICES": "1,3"}, 2, str(tool))
    cards.ask()
    turn_until(loop, lambda: cards.readings, wait_until, "an answer")
    assert cards.readings == [{"index": 0, "percent": 70, "memory_mb": 300}]
    assert (tmp_path / "asked").read_text().startswith("-i 1,3 --query-gpu=utilization.gpu,memory.used")
    assert cards._process is None


def test_where_there_is_no_tool_or_no_card_nothing_is_started(loop: Loop, tmp_path: Path) -> None:
    absent = Accelerators(loop, {}, 1, str(tmp_path / "absent"))
    absent.ask()
    assert not absent._is_there
    unasked = Accelerators(loop, {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0, "/bin/false")
    unasked.ask()
    assert unasked._process is None


def test_it_tells_what_has_changed_and_nothing_while_nobody_listens(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_until: Any
) -> None:
    monkeypatch.setattr("openai4s_provisioner.worker.usage._FIRST_S", 0.0)
    monkeypatch.setattr("openai4s_provisioner.worker.usage._EVERY_S", 0.01)
    told: list[dict[str, Any]] = []
    listens = [False]
    looks: list[float] = []

    def look(now: float) -> tuple[float, int]:
        looks.append(now)
        return len(told) * 0.5, 0

    watch = UsageWatch(loop, told.append, lambda: listens[0])
    monkeypatch.setattr(watch._use, "look", look)
    turn_until(loop, lambda: len(looks) > 5, wait_until, "some looks")
    assert told == []
    listens[0] = True
    turn_until(loop, lambda: told, wait_until, "a first word")
    seen = len(looks)
    turn_until(loop, lambda: len(looks) > seen + 5, wait_until, "more looks")
    assert len(told) == 1, "nothing that a reader would see has changed"
    assert told[0]["type"] == "usage"
    watch.close()
