"""A state file that another process keeps locked for longer than we wait for it: nothing is lost by that."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner.gateway.kernel_check import KernelSilent
from openai4s_provisioner.jupyter.provisioner import SessionProvisioner
from openai4s_provisioner.jupyter.settings import OpenAI4S
from openai4s_provisioner.orchestration.store import Store

from .conftest import SessionLab

pytestmark = pytest.mark.anyio

_LOCKER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as a server waits for a lock in earnest would be too long for a test."""
    monkeypatch.setattr("openai4s_provisioner.orchestration.store.sqlite._BUSY_TIMEOUT_S", 0.1)


@contextlib.contextmanager
def locked_by_another_process() -> Iterator[None]:
    state = Path(OpenAI4S().frozen().state_dir) / "state.db"
    locker = subprocess.Popen(
        [sys.executable, "-c", _LOCKER, str(state)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with locker:
        assert locker.stdout is not None
        assert locker.stdout.readline() == b"locked\n"
        yield
        assert locker.stdin is not None
        locker.stdin.close()
        locker.wait()


async def test_a_kernel_shut_down_while_the_state_is_locked_gives_its_allocation_back(
    lab: SessionLab,
    short_patience: None,
    no_process_left: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SessionProvisioner, "_under_a_server", lambda self: True)
    await lab.start()
    await lab.situation()
    control = lab.control
    with locked_by_another_process():
        await lab.manager.shutdown_kernel(now=True)
        not_yet = "could not be given back yet"
        await lab.until(lambda: not_yet in caplog.text, "the wish met the lock")
        assert "locked" in caplog.text
    await lab.until(lambda: control.kernel_state(lab.manager.kernel_id) is None, "its session is over")
    said = [each for each in caplog.records if not_yet in each.getMessage()]
    assert [each.levelno for each in said] == [logging.ERROR], "it is said once"
    no_process_left()


async def test_a_start_that_failed_while_the_state_is_locked_gives_its_allocation_back(
    lab: SessionLab, short_patience: None, no_process_left: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openai4s_provisioner.live_kernels._WISH_WAIT_S", 0.1)
    locked = contextlib.ExitStack()

    async def silent(*args: Any) -> None:
        locked.enter_context(locked_by_another_process())
        raise KernelSilent("it says nothing")

    monkeypatch.setattr("openai4s_provisioner.live_kernels.kernel_answers", silent)
    with pytest.raises(KernelSilent):
        await lab.manager.start_kernel(cwd=str(lab.work))
    control = lab.control
    running = control._running
    assert running is not None
    (live,) = running.kernels._live.values()
    await asyncio.to_thread(locked.close)
    await lab.until(lambda: live.state.final, "the session is over")
    ended = await asyncio.wrap_future(running.sessions._store.submit(Store.workload, live.workload_id))
    assert ended is not None
    assert ended.reason_detail == "it says nothing"
    await lab.until(lambda: not running.kernels._live and not running.sessions._places, "nothing of it is remembered")
    no_process_left()
