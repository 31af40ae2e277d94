"""Leases on real sessions with clocks of a few seconds: what renews them, what does not, and what a person is told."""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jupyter_events import EventLogger

from openai4s_provisioner.jupyter.announcer import LEASE_SCHEMA_ID, SCHEMA_ID, SCHEMA_PATHS
from openai4s_provisioner.orchestration.models import Phase
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.store import Store, leases

from .conftest import SessionLab

pytestmark = pytest.mark.anyio

Heard = list[tuple[str, dict[str, Any]]]


def offer(root: Path, monkeypatch: pytest.MonkeyPatch, **policy: object) -> None:
    """One profile with these lease clocks, looked at often."""
    values = {"idle_ttl_s": 3600, "max_lifetime_s": 3600, "warn_s": 0, "busy_counts": True, **policy}
    lines = [f"{name} = {str(value).lower()}" for name, value in values.items()]
    path = root / "cluster.toml"
    path.write_text("\n".join(["[control]", "period_s = 0.2", "[profiles.default.leases]", *lines]) + "\n")
    monkeypatch.setenv("OPENAI4S_CLUSTER_TOML", str(path))


@pytest.fixture
def heard(lab: SessionLab) -> Heard:
    """Every event that the lab's manager emits, as (state or phase, event)."""
    found: Heard = []
    logger = EventLogger(handlers=[logging.NullHandler()])

    async def listen(logger: EventLogger, schema_id: str, data: dict[str, Any]) -> None:
        found.append((str(data.get("state") or data.get("reason") or data["phase"]), data))

    for path in SCHEMA_PATHS:
        logger.register_event_schema(path)
    for schema_id in (SCHEMA_ID, LEASE_SCHEMA_ID):
        logger.add_listener(schema_id=schema_id, listener=listen)
    setattr(lab.manager, "event_logger", logger)  # noqa: B010
    return found


async def ended(lab: SessionLab) -> Reason | None:
    """Wait until Jupyter's restarter shows the kernel dead; why its session ended."""
    shown: list[str] = []
    lab.manager.add_restart_callback(lambda: shown.append("restart"), "restart")
    lab.manager.add_restart_callback(lambda: shown.append("dead"), "dead")
    await lab.until(lambda: shown, "the kernel is shown dead")
    assert shown == ["dead"], "nothing restarts a released session"
    while not (situation := await lab.situation()).workload.phase.is_terminal:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    assert situation.workload.phase is not Phase.LOST
    return situation.workload.reason


async def lease(lab: SessionLab) -> leases.Lease:
    running = lab.control._running
    assert running is not None
    groups = await running.sessions._store.run(leases.running, running._daemon.daemon_id)
    ((found,),) = groups
    return found


async def until_activity(lab: SessionLab, doing: str) -> leases.Lease:
    while (found := await lease(lab)).activity != doing:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return found


async def test_an_idle_session_is_released_after_a_warning_with_the_exact_time(
    lab: SessionLab, heard: Heard, place: Any, monkeypatch: pytest.MonkeyPatch, no_process_left: Any
) -> None:
    offer(place.root, monkeypatch, idle_ttl_s=4, warn_s=2)
    await lab.start()
    await lab.situation()
    await lab.run("x = 1")
    assert await ended(lab) is Reason.SESSION_IDLE_TIMEOUT
    told = [name for name, _ in heard]
    assert told.count("warning") == 1
    assert told.index("warning") < told.index("SESSION_IDLE_TIMEOUT")
    warning = next(data for name, data in heard if name == "warning")
    assert warning["can_be_kept"]
    assert warning["ends_at"].endswith("+00:00")
    assert 0 < warning["seconds_left"] <= 2
    last = heard[-1][1]
    assert Reason.SESSION_IDLE_TIMEOUT.sentence in last["sentence"]
    await lab.manager.cleanup_resources()
    no_process_left()


async def test_a_running_cell_is_activity_though_no_client_is_connected(
    lab: SessionLab, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(place.root, monkeypatch, idle_ttl_s=3)
    await lab.start()
    await lab.situation()
    await lab.begin("import time; time.sleep(9)")
    assert lab.client is not None
    lab.client.stop_channels()
    lab.client = None
    begun = await until_activity(lab, "busy")
    rested = await until_activity(lab, "idle")
    assert rested.last_active_at - begun.last_active_at > 7, "it was active until its end, three idle times later"
    assert await ended(lab) is Reason.SESSION_IDLE_TIMEOUT


async def test_a_running_cell_is_no_activity_where_the_profile_says_so(
    lab: SessionLab, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(place.root, monkeypatch, idle_ttl_s=3, busy_counts=False)
    await lab.start()
    await lab.situation()
    await lab.begin("import time; time.sleep(1000)")
    assert await ended(lab) is Reason.SESSION_IDLE_TIMEOUT


async def test_the_absolute_clock_is_extended_by_nothing(
    lab: SessionLab, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(place.root, monkeypatch, max_lifetime_s=5)
    await lab.start()
    await lab.situation()
    started = (await lease(lab)).started_at
    await lab.begin("import time; time.sleep(1000)")
    kept = await asyncio.wrap_future(lab.control.keep(lab.manager.kernel_id, "somebody"))
    assert kept.until is not None
    assert kept.until.reason is Reason.SESSION_MAX_LIFETIME_EXCEEDED
    assert started is not None
    assert kept.until.at == started + 5
    assert await ended(lab) is Reason.SESSION_MAX_LIFETIME_EXCEEDED


async def test_a_flood_of_questions_renews_nothing(
    lab: SessionLab, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(place.root, monkeypatch, idle_ttl_s=4)
    await lab.start()
    await lab.situation()
    await lab.run("x = 1")
    client = lab.client
    assert client is not None
    asked = 0

    async def flood() -> None:
        nonlocal asked
        while True:
            client.kernel_info()
            client.complete("x.")
            client.execute("1+1", silent=True)
            client.comm_info()
            asked += 1
            await asyncio.sleep(0.02)

    flooding = asyncio.get_running_loop().create_task(flood())
    try:
        assert await ended(lab) is Reason.SESSION_IDLE_TIMEOUT
    finally:
        flooding.cancel()
    assert asked > 50


async def test_a_restarted_kernel_is_read_too(lab: SessionLab, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(place.root, monkeypatch)
    await lab.start()
    await lab.situation()
    await lab.begin("import time; time.sleep(1000)")
    await until_activity(lab, "busy")
    await lab.manager.restart_kernel(now=True)
    await lab.connect()
    rested = await until_activity(lab, "idle")
    await lab.run("x = 1")
    while (await lease(lab)).last_active_at == rested.last_active_at:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def test_a_keep_without_any_state_is_one_sentence_and_makes_none(place: Any) -> None:
    before = place.everything()
    said = keep("all")
    assert said.returncode == 1
    assert said.stderr.count("\n") == 1
    assert "no session to keep" in said.stderr
    assert place.everything() == before


@pytest.mark.parametrize("by", [lambda kernel_id: "all", lambda kernel_id: kernel_id[:8]], ids=["all", "beginning"])
async def test_a_keep_by_another_process_takes_the_warning_back(
    by: Callable[[str], str], lab: SessionLab, heard: Heard, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(place.root, monkeypatch, idle_ttl_s=16, warn_s=8)
    await lab.start()
    await lab.situation()
    await lab.until(lambda: "warning" in [name for name, _ in heard], "the warning")
    before = await lease(lab)
    said = await asyncio.to_thread(keep, by(lab.manager.kernel_id))
    assert lab.manager.kernel_id in said.stdout
    assert said.returncode == 0
    await lab.until(lambda: "withdrawn" in [name for name, _ in heard], "the warning is taken back")
    assert (await lease(lab)).last_active_at > before.last_active_at
    assert await ended(lab) is Reason.SESSION_IDLE_TIMEOUT
    assert [name for name, _ in heard if name in {"warning", "withdrawn"}] == ["warning", "withdrawn", "warning"]
    late = await asyncio.to_thread(keep, lab.manager.kernel_id)
    assert late.returncode == 1
    assert "No session holds" in late.stderr


async def test_a_program_beside_the_kernel_can_keep_it(
    lab: SessionLab, heard: Heard, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``!openai4s keep`` does in a cell; here from behind one, for a cell of its own would be activity."""
    offer(place.root, monkeypatch, idle_ttl_s=16, warn_s=8)
    await lab.start()
    script = "until [ -e go ]; do sleep 0.1; done; openai4s keep >said 2>&1; echo $? >status"
    await lab.run(f"import subprocess; subprocess.Popen({script!r}, shell=True)")
    await lab.until(lambda: "warning" in [name for name, _ in heard], "the warning")
    before = await lease(lab)
    (lab.work / "go").touch()
    await lab.until((lab.work / "status").exists, "the program is answered")
    assert (lab.work / "said").read_text().startswith("kept until ")
    assert (lab.work / "status").read_text() == "0\n"
    await lab.until(lambda: "withdrawn" in [name for name, _ in heard], "the warning is taken back")
    assert (await lease(lab)).last_active_at > before.last_active_at
    running = lab.control._running
    assert running is not None
    events = await running.sessions._store.run(Store.events, (await lab.situation()).workload.workload_id)
    (kept,) = (event for event in events if event.kind == "kept")
    assert (kept.actor, kept.detail) == (f"{getpass.getuser()}, from inside the session", lab.manager.kernel_id)


async def test_a_keep_from_inside_that_comes_too_late_is_refused_with_the_reason(lab: SessionLab) -> None:
    await lab.start()
    running = lab.control._running
    assert running is not None
    situation = await lab.situation()
    # The wish is written; whoever would carry it out does not know yet.
    args = (situation.workload.workload_id, Reason.SESSION_IDLE_TIMEOUT, "", "lease", 0.0)
    script = "until [ -e go ]; do sleep 0.02; done; openai4s keep >said 2>&1; echo $? >status"
    await lab.run(f"import subprocess; subprocess.Popen({script!r}, shell=True)")
    await asyncio.wrap_future(lab.control._submit(running.reconciler.stop()))
    await running.sessions._store.run(Store.request_stop, *args)
    (lab.work / "go").touch()
    await lab.until((lab.work / "status").exists, "the program is answered")
    assert Reason.SESSION_IDLE_TIMEOUT.sentence in (lab.work / "said").read_text()
    assert (lab.work / "status").read_text() == "1\n"
    lab.control._loop.call_soon_threadsafe(running.reconciler.start)


def keep(kernel: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "openai4s_provisioner.jupyter.cli", "keep", kernel]
    return subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=False, timeout=60)
