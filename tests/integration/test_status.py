"""``jupyter openai4s status``: what a process's control loop did, and where it fails, read by another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.config import Policy
from openai4s_provisioner.orchestration.pulse_report import read_report
from openai4s_provisioner.testing.control_lab import ControlLab, in_lab
from openai4s_provisioner.testing.faulty_backends import BackendThatCannotBeAsked, ManualClock, ObedientBackend

from .conftest import SessionLab


def status(state_dir: Path | None = None) -> subprocess.CompletedProcess[str]:
    words = [] if state_dir is None else ["--state-dir", str(state_dir)]
    command = [sys.executable, "-m", "openai4s_provisioner.jupyter.cli", "status", *words]
    return subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=False, timeout=60)


def test_without_any_state_it_says_so_and_makes_none(tmp_path: Path) -> None:
    said = status(tmp_path / "state")
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith("Nothing was ever started")
    assert list(tmp_path.iterdir()) == []


def test_failures_are_counted_and_told_with_their_workload(tmp_path: Path) -> None:
    clock = ManualClock()

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")

        async def breaks(*anything: object) -> None:
            raise RuntimeError("boom")

        lab.executor.perform = breaks  # type: ignore[method-assign, assignment]
        await lab.turns()
        await lab.reconciler._report()
        said = status(lab.state_dir)
        assert said.returncode == 0, said.stderr
        assert f"process {lab.daemon.daemon_id[:12]}" in said.stdout
        assert "drives 1" in said.stdout
        assert "failed 1," in said.stdout
        assert "RuntimeError: boom" in said.stdout
        (line,) = (each for each in said.stdout.splitlines() if opened.workload_id[:12] in each)
        assert "failed 1 times, again at " in line

    in_lab(tmp_path, scenario, ObedientBackend(clock), clock=clock)


def test_a_backend_that_does_not_answer_is_named(tmp_path: Path) -> None:
    clock = ManualClock()
    backend = BackendThatCannotBeAsked(clock)

    async def scenario(lab: ControlLab) -> None:
        await lab.open("k1")
        await lab.turns(2)
        await lab.reconciler._report()
        said = status(lab.state_dir).stdout
        assert f"does not answer: {backend.name}" in said
        assert "unanswered 1" in said

    in_lab(tmp_path, scenario, backend, clock=clock, policy=Policy(call_deadline_s=0.2))


def test_a_report_is_its_owners_alone_and_goes_with_its_process(tmp_path: Path) -> None:
    clock = ManualClock()

    async def scenario(lab: ControlLab) -> None:
        await lab.active_session("k1")
        await lab.reconciler._report()
        path = lab.daemon.report_path
        assert path.stat().st_mode & 0o777 == 0o600
        report = read_report(path)
        assert report is not None
        assert report.pulse.turns > 0
        await lab.daemon.retire()
        assert list((lab.state_dir / "daemons").iterdir()) == []

    in_lab(tmp_path, scenario, ObedientBackend(clock), clock=clock)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"pulse": 1}', "\0" * 100])
def test_a_report_that_cannot_be_understood_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    assert read_report(tmp_path / "x.json") is None
    assert read_report(tmp_path / "none.json") is None


@pytest.mark.anyio
async def test_a_real_session_s_process_is_shown_while_it_lives(lab: SessionLab) -> None:
    await lab.start()
    said = await lab.until(lambda: said if "looked at" in (said := status().stdout) else "", "its report")
    assert f"pid {os.getpid()}\tdrives 1\tbeat " in said
    control = lab.control
    await lab.manager.shutdown_kernel()
    control.stop()
    assert status().stdout == "No process drives anything now.\n"
