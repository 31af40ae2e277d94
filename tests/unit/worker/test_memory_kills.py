"""An end for want of memory is named as such, from the counter of either version of control groups, and no other is."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from openai4s_provisioner.worker.memory_kills import MemoryKills

KILLED = {"type": "kernel_exited", "signal": signal.SIGKILL, "exit_code": None, "tail": "last words\n"}
VERSIONS = {
    "first": (
        "5:memory:/job\n0::/\n",
        "memory/job/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n",
    ),
    "second": ("0::/job\n", "job/memory.events", "low 0\nmax 12\noom 1\noom_kill {}\n"),
}


def machine(tmp_path: Path, version: str, count: int) -> Path:
    groups, counter, text = VERSIONS[version]
    (tmp_path / "proc/self").mkdir(parents=True, exist_ok=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    path = tmp_path / "groups" / counter
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.format(count))
    return path


def watcher(tmp_path: Path) -> MemoryKills:
    return MemoryKills(str(tmp_path / "proc"), str(tmp_path / "groups"))


@pytest.mark.parametrize("version", VERSIONS)
def test_an_end_for_want_of_memory_is_named(tmp_path: Path, version: str) -> None:
    machine(tmp_path, version, 3)
    kills = watcher(tmp_path)
    assert kills.explained(KILLED) == KILLED, "the three before were somebody else"
    machine(tmp_path, version, 4)
    assert kills.explained(KILLED)["tail"].startswith("last words\nIt used more memory")
    assert kills.explained(KILLED) == KILLED, "each is told once"


def test_any_other_end_is_left_as_it_is(tmp_path: Path) -> None:
    machine(tmp_path, "first", 0)
    kills = watcher(tmp_path)
    machine(tmp_path, "first", 1)
    plain = {**KILLED, "signal": None, "exit_code": 1}
    assert kills.explained(plain) == plain


@pytest.mark.parametrize("what", ["no proc", "no counter", "no sense"])
def test_where_nothing_is_counted_nothing_is_claimed(tmp_path: Path, what: str) -> None:
    if what != "no proc":
        counter = machine(tmp_path, "second", 0)
        counter.unlink() if what == "no counter" else counter.write_bytes(b"oom_kill\nx y\n")
    assert watcher(tmp_path).explained(KILLED) == KILLED
