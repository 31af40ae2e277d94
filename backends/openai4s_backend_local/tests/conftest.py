"""The bench of the local backend's tests: after each test nothing of its allocations may be left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai4s_backend_local import shim
from openai4s_provisioner.orchestration.models import ResourceProfile
from openai4s_provisioner.testing.backend_lab import BackendLab


@pytest.fixture
def backend_lab(tmp_path: Path) -> Iterator[BackendLab]:
    lab = BackendLab(
        factory="openai4s_backend_local:create_backend",
        state_dir=tmp_path / "state",
        exchange_dir=tmp_path / "exchange",
        profile=ResourceProfile("one", "local"),
        refused_profile=ResourceProfile("two-machines", "local", nodes=2),
        options={"kill_after_s": 0.5},
        patience_s=20.0,
    )
    try:
        yield lab
    finally:
        lab.end_everything()
        end_shims(lab)
    left = marked(lab)
    assert not left, f"processes of this test's allocations are left: {left}"


def end_shims(lab: BackendLab) -> None:
    """Give what is still there the time to see its children dead, then end it by pid."""
    deadline = time.monotonic() + 5
    while (left := marked(lab)) and time.monotonic() < deadline:
        for process in left:
            shim.send_signal(process, signal.SIGTERM if time.monotonic() < deadline - 3 else signal.SIGKILL)
        time.sleep(0.05)


def marked(lab: BackendLab) -> list[shim.Process]:
    """Every live process whose environment points into this lab: by the marker, and below the lab's own folder."""
    return [process for process in shim.all_processes() if process.is_alive and _points_into(process.pid, lab)]


def _points_into(pid: int, lab: BackendLab) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return (shim.MARKER + "=").encode() in environment and os.fsencode(lab.exchange_dir) in command
