"""A process that holds sessions dies: what its workers do, what the next process finds, and that nothing is left."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import processes_below

# Starts a session like any script would, says that it runs, and waits to be killed.
HOLDER = """
import sys
from jupyter_client.manager import KernelManager
km = KernelManager(kernel_name={kernel!r})
km.start_kernel()
print("running", flush=True)
sys.stdin.readline()
{ending}
"""


@pytest.fixture(autouse=True)
def impatient_workers(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site's grace for a server that went away is the shortest there is."""
    site = place.root / "cluster.toml"
    site.write_text("[limits]\nserver_grace_s = 1\n")
    monkeypatch.setenv("OPENAI4S_CLUSTER_TOML", str(site))


def _holder(kernel: str, work: Path, ending: str = "") -> subprocess.Popen[str]:
    program = HOLDER.format(kernel=kernel, ending=ending)
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", program], cwd=work, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    return process


def _phase_and_reason(root: Path) -> tuple[str, str]:
    database = root / "home/.local/state/openai4s/state.db"
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        row: tuple[str, str] = connection.execute("SELECT phase, reason FROM workload ORDER BY created_at").fetchone()
    finally:
        connection.close()
    return row


def test_a_killed_server_ends_its_sessions_after_the_grace(
    place: Any, work: Path, session_kernel: str, no_process_left: Any
) -> None:
    holder = _holder(session_kernel, work)
    assert processes_below(place.root, ".pyz worker ")
    holder.kill()
    holder.communicate()
    no_process_left()


def test_the_next_server_settles_what_a_killed_one_left(
    place: Any, work: Path, session_kernel: str, no_process_left: Any
) -> None:
    holder = _holder(session_kernel, work)
    holder.kill()
    holder.communicate()
    assert _phase_and_reason(place.root)[0] in {"GRANTED", "ACTIVE"}, "that all is ready is noted a moment later"
    following = _holder(session_kernel, work, "km.shutdown_kernel()")
    following.communicate("\n", timeout=60)
    assert following.returncode == 0
    phase, reason = _phase_and_reason(place.root)
    assert reason == "SERVER_GONE"
    assert phase in {"CANCELLED", "FAILED", "COMPLETED", "LOST"}
    no_process_left()
    assert list((place.root / "home/.local/state/openai4s/exchange/attempts").iterdir()) == []
    assert list((place.root / "xdg").iterdir()) == []
    assert list((place.root / "tmp").glob("o4s-*")) == [], "what else is there, Jupyter left"
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)"], ids=["without a word", "by an exception"])
def test_a_script_that_ends_gives_its_session_back(
    place: Any, work: Path, session_kernel: str, no_process_left: Any, ending: str
) -> None:
    holder = _holder(session_kernel, work, ending)
    holder.communicate("\n", timeout=60)
    no_process_left(deadline_s=5)
    assert _phase_and_reason(place.root) == ("COMPLETED", "USER_CANCELLED")
    assert list((place.root / "xdg").iterdir()) == []
    state = place.root / "home/.local/state/openai4s"
    assert [path for path in (state / "receipts").iterdir() if path.is_dir()] == []
    assert list((state / "exchange/attempts").iterdir()) == []


def test_a_script_that_is_terminated_leaves_no_process(
    place: Any, work: Path, session_kernel: str, no_process_left: Any
) -> None:
    holder = _holder(session_kernel, work)
    holder.send_signal(signal.SIGTERM)
    holder.communicate()
    no_process_left()
