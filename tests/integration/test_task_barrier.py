"""The cancel barrier and tasks, over a fake backend: tasks are cancelled before the session drains, and end with it."""

from __future__ import annotations

from pathlib import Path

from openai4s_provisioner.orchestration.ports import Observed
from openai4s_provisioner.orchestration.store import tasks
from openai4s_provisioner.testing.control_lab import OWNER, ControlLab, in_lab
from openai4s_provisioner.testing.faulty_backends import ManualClock, ObedientBackend


def test_running_tasks_are_cancelled_before_the_session_drains(tmp_path: Path) -> None:
    clock = ManualClock()
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        task = tasks.NewTask("t1", opened.workload_id, OWNER, ("sleep",), "/")
        await lab.store.run(tasks.open_task, task, clock())
        await lab.sessions.release_kernel("k1", OWNER)
        await lab.turns()
        assert lab.channel.types() == ["task_cancel_all", "end"]
        asked = await lab.store.run(tasks.task, "t1")
        assert asked is not None
        assert asked.cancel_asked_at is not None
        assert asked.ended_at is None
        await lab.report(opened, {"type": "ended", "exit_code": 0, "reason": "USER_CANCELLED"})
        backend.say(Observed.COMPLETED)
        await lab.turns()
        ended = await lab.store.run(tasks.task, "t1")
        assert ended is not None
        assert ended.detail == "Its session ended."

    in_lab(tmp_path, scenario, backend, clock=clock)
