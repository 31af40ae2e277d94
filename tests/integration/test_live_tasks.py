"""What looks after tasks, leases and ends beside the control loop: idle without a session, and tidy after one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner.live_tasks import LiveTasks, make_folder, output_folder
from openai4s_provisioner.orchestration.ports import Observed
from openai4s_provisioner.orchestration.store import StoreThread, tasks
from openai4s_provisioner.orchestration.tasks import TaskDesk
from openai4s_provisioner.orchestration.walltime_watch import WalltimeWatch
from openai4s_provisioner.testing.control_lab import OWNER, ControlLab, in_lab
from openai4s_provisioner.testing.faulty_backends import ManualClock, ObedientBackend


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def live_tasks_of(lab: ControlLab) -> LiveTasks:
    desk = TaskDesk(lab.config, lab.backends, lab.store)
    return LiveTasks(lab.store, lab.daemon, lab.outbox, desk, lab.clock)


async def until(condition: Callable[[], Any]) -> None:
    """The lab has a deadline for all of it."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def test_without_a_session_nothing_reads_the_state(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    submit = StoreThread.submit

    def counted(self: StoreThread, method: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(method)
        return submit(self, method, *args, **kwargs)

    async def scenario(lab: ControlLab) -> None:
        await lab.daemon.register()
        await lab.turns()
        live = live_tasks_of(lab)
        watch = WalltimeWatch(
            store=lab.store, daemon=lab.daemon, config=lab.config, can_extend=lambda profile: False, notify=print
        )
        monkeypatch.setattr(StoreThread, "submit", counted)
        live.start()
        for _ in range(20):
            await asyncio.sleep(0)
        assert await lab.reclaimer.turn() is None
        assert await watch.turn() is None
        assert asked == []
        opened = await lab.open("k1")
        await lab.turns()
        asked.clear()
        await until(lambda: asked)  # tasks are looked after again
        await lab.sessions.release_kernel("k1", OWNER)
        backend.say(Observed.COMPLETED)
        await lab.turns_until(lambda: not lab.daemon.has_work.is_set())
        assert (await lab.situation(opened)).workload.phase.is_terminal
        await live.stop()

    backend = ObedientBackend(clock)
    in_lab(tmp_path, scenario, backend, clock=clock)


def test_a_task_that_went_down_with_its_allocation_leaves_nothing_open(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openai4s_provisioner.live_tasks._COUNT_EVERY_S", 0.0)
    monkeypatch.setattr("openai4s_provisioner.live_tasks._LOOK_S", 0.01)
    backend = ObedientBackend(clock)

    def open_files() -> list[str]:
        names = (f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd"))
        return [os.readlink(name) for name in names if os.path.exists(name)]

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        live = live_tasks_of(lab)
        live.start()
        task = tasks.NewTask("t1", opened.workload_id, OWNER, ("sleep",), "/")
        await lab.store.run(tasks.open_task, task, clock())
        live.look_again()
        await until(lambda: "task" in lab.channel.types())
        printed = {"type": "task_output", "task_id": "t1", "data": "eA=="}
        live.worker_message(opened.allocation_id, printed)
        folder = str(output_folder(lab.state_dir, "t1"))
        await until(lambda: any(name.startswith(folder) for name in open_files()))
        backend.say(Observed.FAILED)  # its machine is gone, and says nothing
        await lab.turns_until(lambda: not live._running)
        assert not any(name.startswith(folder) for name in open_files())
        await live.stop()

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_the_output_of_a_task_in_use_is_never_the_one_that_goes(tmp_path: Path) -> None:
    for number in range(52):
        folder = make_folder(tmp_path, f"t{number}", ())
        os.utime(folder, (number, number))
    left = {path.name for path in (tmp_path / "tasks").iterdir()}
    assert left == {f"t{number}" for number in range(1, 52)}, "fifty others, and the newest"
    make_folder(tmp_path, "new", {"t1"})
    assert output_folder(tmp_path, "t1").exists()
    assert not output_folder(tmp_path, "t0").exists()
