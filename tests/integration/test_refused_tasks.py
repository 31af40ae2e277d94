"""Who may not run a task, and where none can be run: refused with the reason, which is recorded with who asked."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.errors import Refused
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.store import Store
from openai4s_provisioner.orchestration.tasks import TaskDesk
from openai4s_provisioner.testing.control_lab import OWNER, ControlLab, in_lab
from openai4s_provisioner.testing.faulty_backends import ManualClock, ObedientBackend


@pytest.mark.parametrize(
    ("actor", "reason"), [("somebody else", Reason.AUTHORIZATION_DENIED), (OWNER, Reason.BACKEND_REJECTED)]
)
def test_a_task_is_refused_to_strangers_and_where_none_can_run(tmp_path: Path, actor: str, reason: Reason) -> None:
    clock = ManualClock()
    backend = ObedientBackend(clock)  # it is no TaskRunner

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        desk = TaskDesk(lab.config, lab.backends, lab.store, time.time)
        with pytest.raises(Refused) as refused:
            await desk.open(opened.workload_id, actor, ["true"], str(lab.workspace))
        assert refused.value.reason is reason
        events = await lab.store.run(Store.events, opened.workload_id)
        assert [(each.actor, each.reason) for each in events if each.kind == "task_refused"] == [(actor, reason)]
        assert backend.submits == 1, "and nothing is submitted for it"

    in_lab(tmp_path, scenario, backend, clock=clock)
