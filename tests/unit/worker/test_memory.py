"""What control groups say of memory, over made-up files of both kinds."""

from __future__ import annotations

from pathlib import Path

from openai4s_provisioner.worker.memory import ended_for_memory, memory_limit


def group(tmp_path: Path, cgroup: str, **files: str) -> tuple[str, str]:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(cgroup)
    for path, content in files.items():
        where = tmp_path / "fs" / path.replace("__", "/").replace("_dot_", ".")
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(content)
    return str(tmp_path), str(tmp_path / "fs")


def test_the_tightest_group_above_is_the_limit(tmp_path: Path) -> None:
    places = group(
        tmp_path, "0::/a/b\n", a__b__memory_dot_max="max\n", a__memory_dot_max="104857600\n", memory_dot_max="max\n"
    )
    assert memory_limit(*places) == 100 * 1024 * 1024


def test_the_older_kind_of_groups_is_read_as_well(tmp_path: Path) -> None:
    (tmp_path / "fs/memory/job").mkdir(parents=True)
    (tmp_path / "fs/memory/job/memory.limit_in_bytes").write_text("209715200\n")
    (tmp_path / "fs/memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert memory_limit(*group(tmp_path, "4:memory:/job\n1:cpu:/\n")) == 200 * 1024 * 1024


def test_no_limit_is_no_number(tmp_path: Path) -> None:
    assert memory_limit(*group(tmp_path, "0::/\n4:memory:/\n")) is None
    assert memory_limit("/nowhere", "/nowhere") is None


def test_ends_for_want_of_memory_are_counted(tmp_path: Path) -> None:
    places = group(tmp_path, "0::/a\n4:memory:/job\n", a__memory_dot_events="low 0\noom 3\noom_kill 2\n")
    (tmp_path / "fs/memory/job").mkdir(parents=True)
    (tmp_path / "fs/memory/job/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert ended_for_memory(*places) == 3
    assert ended_for_memory("/nowhere", "/nowhere") == 0
