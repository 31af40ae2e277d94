"""The worker's zipapp: the same bytes every time, whole or not there, and nothing in it that a node does not need."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from openai4s_provisioner.orchestration.bundle import write_worker_zipapp


def test_two_writers_agree_on_one_file(tmp_path: Path) -> None:
    first = write_worker_zipapp(tmp_path)
    before = first.stat()
    again = write_worker_zipapp(tmp_path)
    assert again == first
    assert again.stat().st_mtime_ns == before.st_mtime_ns, "an intact file is kept"
    assert [path.name for path in tmp_path.iterdir()] == [first.name]
    other = tmp_path / "other"
    other.mkdir()
    assert write_worker_zipapp(other).read_bytes() == first.read_bytes()


def test_a_damaged_one_is_replaced(tmp_path: Path) -> None:
    path = write_worker_zipapp(tmp_path)
    good = path.read_bytes()
    path.write_bytes(good[:100])
    assert write_worker_zipapp(tmp_path).read_bytes() == good


def test_only_what_runs_on_a_node_is_shipped(tmp_path: Path) -> None:
    archive = zipfile.ZipFile(write_worker_zipapp(tmp_path))
    names = archive.namelist()
    assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}, "no clock in the bytes"
    folders = {name.split("/")[1] for name in names if name.count("/") > 1}
    assert folders == {"sandbox", "transport", "wire", "worker"}
    assert not [name for name in names if "__pycache__" in name or not name.endswith(".py")]


def test_it_runs_without_anything_installed(tmp_path: Path) -> None:
    path = write_worker_zipapp(tmp_path)
    missing = subprocess.run(
        [sys.executable, "-I", "-S", path, "worker", tmp_path, "--rank", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert missing.returncode == 78, missing.stderr
    assert "rank-0.json" in missing.stderr
    usage = subprocess.run([sys.executable, "-I", "-S", path], capture_output=True, text=True, check=False)
    assert (usage.returncode, usage.stderr.startswith("usage:")) == (64, True)
