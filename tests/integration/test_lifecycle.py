"""Interrupt, restart, shutdown and sudden death of a session's kernel, as Jupyter drives them (real everything)."""

from __future__ import annotations

import functools
import json
import os
import stat
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.kernelspec import KernelSpecManager

from openai4s_provisioner.orchestration.errors import SessionEnded
from openai4s_provisioner.orchestration.models import Phase
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.recovery import MAX_RECOVERIES

from .conftest import SessionLab, processes_below

pytestmark = pytest.mark.anyio

LOOPS = {
    "a sleep": "import time; time.sleep(1000)",
    "a tight loop": "while True: pass",
}


@pytest.mark.parametrize("code", LOOPS.values(), ids=LOOPS.keys())
async def test_an_interrupt_stops(lab: SessionLab, code: str) -> None:
    await lab.start()
    await lab.run("x = 41")
    running = await lab.begin(code)
    await lab.manager.interrupt_kernel()
    assert (await lab.reply_to(running))["ename"] == "KeyboardInterrupt"
    assert await lab.value("x + 1") == "42"


async def test_an_interrupt_stops_a_program_run_by_the_shell(lab: SessionLab) -> None:
    await lab.start()
    await lab.run("x = 41")
    running = await lab.begin("import os; os.system('touch started; exec sleep 1000')")
    # An interrupt while the shell is being started is lost in any kernel, so the shell itself says that it runs.
    await lab.until((lab.work / "started").exists, "the shell runs")
    await lab.manager.interrupt_kernel()
    await lab.reply_to(running)
    assert await lab.value("x + 1") == "42"


async def test_an_interrupt_reaches_a_kernel_behind_a_wrapper_script(lab: SessionLab, place: Any) -> None:
    _wrap_kernel(place.root, lab)
    await lab.start()
    await lab.run("import os; x = 41")
    running = await lab.begin("import time; time.sleep(1000)")
    await lab.manager.interrupt_kernel()
    assert (await lab.reply_to(running))["ename"] == "KeyboardInterrupt"
    assert await lab.value("x + 1") == "42"
    parent = await lab.value("open(f'/proc/{os.getppid()}/comm').read().strip()")
    assert parent.strip("'") in {"sh", "dash", "wrapper.sh"}, "the wrapper lives on around the kernel"


async def test_a_restart_keeps_allocation_and_worker(lab: SessionLab, place: Any) -> None:
    await lab.start()
    await lab.run("x = 1")
    before = await _identity(lab, place.root)
    await lab.manager.restart_kernel()
    await lab.connect()
    await _assert_fresh_in_the_same_place(lab, place.root, before)


async def test_a_restart_now_keeps_allocation_and_worker(lab: SessionLab, place: Any) -> None:
    await lab.start()
    await lab.run("x = 1")
    before = await _identity(lab, place.root)
    await lab.manager.restart_kernel(now=True)
    await lab.connect()
    await _assert_fresh_in_the_same_place(lab, place.root, before)


@pytest.mark.parametrize("victim", ["kernel", "inner", "sandbox"])
async def test_a_killed_kernel_is_restarted_in_its_allocation(lab: SessionLab, place: Any, victim: str) -> None:
    await lab.start()
    await lab.run("x = 1")
    before = await _identity(lab, place.root)
    restarts: list[str] = []
    lab.manager.add_restart_callback(lambda: restarts.append("restart"), "restart")
    lab.manager.add_restart_callback(lambda: restarts.append("dead"), "dead")
    old = _part(place.root, victim)
    old.kill()
    await lab.until(lambda: restarts, "Jupyter's restarter restarts the kernel")
    await lab.until(lambda: lab.manager.has_kernel and _is_ready(lab), "the kernel is back")
    await lab.connect()
    await _assert_fresh_in_the_same_place(lab, place.root, before)
    assert restarts == ["restart"]


async def test_a_killed_worker_is_recovered_in_a_new_epoch_behind_the_same_sockets(
    lab: SessionLab, place: Any, quick_recovery: None
) -> None:
    await lab.start()
    await lab.run("x = 1")
    restarts = _restarts_of(lab)
    events = _events_of(lab)
    before, sockets = await lab.situation(), lab.manager.get_connection_info()
    _part(place.root, "worker").kill()
    await lab.until(lambda: restarts, "the session is recovered")
    after = await lab.situation()
    assert (after.workload.epoch, after.allocation.epoch) == (2, 2)
    assert after.allocation.token != before.allocation.token
    assert lab.manager.get_connection_info() == sockets
    # The client that was connected all along reaches the new kernel, without doing anything.
    assert await lab.value("x") == "NameError", "the kernel is fresh"
    assert await lab.manager.is_alive()
    assert restarts == ["restart"]
    assert [event["reason"] for event in events if event["met"] == 4][-1] == "KERNEL_STATE_LOST"
    assert any("WORKER_LOST" in event["sentence"] and "starting again, 1 of" in event["sentence"] for event in events)


async def test_a_worker_that_keeps_dying_ends_the_session_with_its_reason(
    lab: SessionLab, place: Any, no_process_left: Any, quick_recovery: None
) -> None:
    await lab.start()
    restarts = _restarts_of(lab)
    for recovery in range(MAX_RECOVERIES):
        _part(place.root, "worker").kill()
        await lab.until(functools.partial(_has_length, restarts, recovery + 1), "the session is recovered")
        await lab.value("1")
    situation = await lab.situation()
    _part(place.root, "worker").kill()
    await lab.until(lambda: "dead" in restarts, "the kernel is shown dead")
    assert restarts == ["restart"] * MAX_RECOVERIES + ["dead"], "a session that is over is not submitted again"
    ended = await lab.situation()
    assert ended.workload.phase is Phase.FAILED
    assert ended.workload.reason is Reason.WORKER_LOST
    assert ended.allocation.allocation_id == situation.allocation.allocation_id
    await lab.manager.cleanup_resources()
    no_process_left()
    await _nothing_of_the_session_is_left(lab, place.root)


async def test_a_killed_worker_without_a_client_ends_the_session_with_its_reason(
    lab: SessionLab, place: Any, no_process_left: Any
) -> None:
    await lab.start()
    assert lab.client is not None
    lab.client.stop_channels()
    restarts = _restarts_of(lab)
    situation = await lab.situation()
    _part(place.root, "worker").kill()
    await lab.until(lambda: "dead" in restarts, "the kernel is shown dead")
    ended = await lab.situation()
    assert (ended.workload.phase, ended.workload.reason) == (Phase.FAILED, Reason.WORKER_LOST)
    assert ended.allocation.allocation_id == situation.allocation.allocation_id
    await lab.manager.cleanup_resources()
    no_process_left()
    await _nothing_of_the_session_is_left(lab, place.root)


async def test_a_kernel_that_ends_by_itself_is_told_from_a_lost_one(lab: SessionLab, place: Any) -> None:
    await lab.start()
    before = await _identity(lab, place.root)
    restarts: list[str] = []
    lab.manager.add_restart_callback(lambda: restarts.append("restart"), "restart")
    assert lab.client is not None
    lab.client.execute("import os; os._exit(7)")
    await lab.until(lambda: restarts, "Jupyter's restarter restarts the kernel")
    await lab.until(lambda: _is_ready(lab), "the kernel is back")
    await lab.connect()
    await _assert_fresh_in_the_same_place(lab, place.root, before)


async def test_a_restart_after_the_workspace_was_deleted_says_so(lab: SessionLab, caplog: Any) -> None:
    await lab.start()
    lab.work.rmdir()
    await lab.manager.restart_kernel(now=True)
    assert not await lab.manager.is_alive()
    assert f"It could not be started: the workspace {lab.work} cannot be used" in caplog.text
    assert (await lab.situation()).workload.phase is Phase.ACTIVE, "a folder that comes back can be used again"


async def test_a_shutdown_leaves_nothing_behind(lab: SessionLab, place: Any, no_process_left: Any) -> None:
    await lab.start()
    assert processes_below(place.root, "worker"), "the count below would see a worker"
    await lab.run("print('x' * 1000)")
    situation = await lab.situation()
    assert lab.client is not None
    lab.client.stop_channels()
    await lab.manager.shutdown_kernel()
    no_process_left()
    await _nothing_of_the_session_is_left(lab, place.root)
    assert situation.allocation.phase is Phase.ACTIVE


async def test_a_shutdown_is_recorded_as_completed(lab: SessionLab) -> None:
    await lab.start()
    await lab.situation()
    await lab.manager.shutdown_kernel()
    workload = (await lab.situation()).workload
    assert workload.phase is Phase.COMPLETED
    assert workload.reason is Reason.USER_CANCELLED


async def test_a_kernel_that_cannot_start_says_why_and_leaves_nothing(
    lab: SessionLab, place: Any, no_process_left: Any
) -> None:
    _replace_argv(lab, ["python", "-c", "import sys; sys.exit('this kernel is broken')", "{connection_file}"])
    with pytest.raises(SessionEnded, match="this kernel is broken"):
        await lab.start()
    no_process_left()
    await _nothing_of_the_session_is_left(lab, place.root)


@pytest.fixture
def quick_recovery(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of a tenth of a second instead of many seconds."""
    site = place.root / "cluster.toml"
    site.write_text("[control]\nrecovery_pause_s = 0.1\nperiod_s = 0.5\n")
    monkeypatch.setenv("OPENAI4S_CLUSTER_TOML", str(site))


# -- what the tests look at ----------------------------------------------------------------------------------------


def _restarts_of(lab: SessionLab) -> list[str]:
    restarts: list[str] = []
    lab.manager.add_restart_callback(lambda: restarts.append("restart"), "restart")
    lab.manager.add_restart_callback(lambda: restarts.append("dead"), "dead")
    return restarts


def _has_length(items: list[str], length: int) -> bool:
    return len(items) == length


def _events_of(lab: SessionLab) -> list[dict[str, Any]]:
    """What people are told from now on, as the events they read."""
    events: list[dict[str, Any]] = []
    running = lab.control._running
    assert running is not None
    live = running.kernels._live[lab.manager.kernel_id]
    announce = live.announce

    def keep(change: Any) -> None:
        events.append(change.as_event())
        announce(change)

    live.announce = keep
    return events


def _part(root: Path, part: str) -> psutil.Process:
    """One process of the only session: its worker, its inner, its kernel, or the sandbox around both."""
    (worker,) = (each for each in processes_below(root, ".pyz worker ") if each.cmdline()[2].endswith(".pyz"))
    if part == "worker":
        return worker
    below = worker.children(recursive=True)
    if part == "sandbox":
        return next(process for process in below if process.name() == "bwrap")
    kernel = next(process for process in below if "ipykernel_launcher" in " ".join(process.cmdline()))
    return kernel if part == "kernel" else next(process for process in kernel.parents() if process.name() != "bwrap")


async def _identity(lab: SessionLab, root: Path) -> tuple[str, int, int, int]:
    situation = await lab.situation()
    kernel = _part(root, "kernel")
    return situation.allocation.allocation_id, _part(root, "worker").pid, len(_receipts(root)), kernel.pid


async def _assert_fresh_in_the_same_place(lab: SessionLab, root: Path, before: tuple[str, int, int, int]) -> None:
    after = await _identity(lab, root)
    assert after[:3] == before[:3], "allocation, worker and the number of submissions are the same"
    assert after[3] != before[3], "the kernel's process is another one"
    assert await lab.value("x") == "NameError", "the kernel is fresh"


def _is_ready(lab: SessionLab) -> bool:
    state = lab.control.kernel_state(lab.manager.kernel_id)
    return lab.manager.ready.done() and state is not None and state.alive


def _receipts(root: Path) -> list[Path]:
    return [path for path in (root / "home/.local/state/openai4s/receipts").glob("*") if path.is_dir()]


def _session_files(root: Path) -> list[str]:
    """Files and sockets that belong to one session, and not to the installation."""
    state = root / "home/.local/state/openai4s"
    found = [str(path) for path in (state / "exchange/attempts").rglob("*")]
    found += [str(path) for path in _receipts(root)]
    found += [str(path) for path in (root / "work").rglob("*")]
    found += [str(path) for path in (root / "tmp").rglob("*")]
    for path in (root / "xdg").rglob("*"):
        if stat.S_ISSOCK(path.lstat().st_mode) and path.name != "gw.sock":
            found.append(str(path))
    return found


async def _nothing_of_the_session_is_left(lab: SessionLab, root: Path) -> None:
    """An attempt is cleared right after its end is written down."""
    await lab.until(lambda: not _session_files(root), "the session's files are gone", deadline_s=10)


def _wrap_kernel(root: Path, lab: SessionLab) -> None:
    folder = root / "wrapper"
    folder.mkdir()
    wrapper = folder / "wrapper.sh"
    argv = KernelSpecManager().get_kernel_spec("python3").argv
    python = argv[0] if os.path.isabs(argv[0]) else __import__("sys").executable
    wrapper.write_text(f'#!/bin/sh\n{python} -m ipykernel_launcher "$@"\nexit $?\n')
    wrapper.chmod(0o755)
    _replace_argv(lab, [str(wrapper), "-f", "{connection_file}"])


def _replace_argv(lab: SessionLab, argv: list[str]) -> None:
    """Make the session's base kernel another one, as a site would: by a kernelspec of its own."""
    folder = Path(os.environ["JUPYTER_DATA_DIR"]) / "kernels" / "own"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Own", "language": "python"}))
    spec = KernelSpecManager().find_kernel_specs()[lab.manager.kernel_name]
    stanza = json.loads((Path(spec) / "kernel.json").read_text())
    stanza["metadata"]["kernel_provisioner"]["config"]["base_kernel"] = "own"
    (Path(spec) / "kernel.json").write_text(json.dumps(stanza))
