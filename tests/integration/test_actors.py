"""Who acted, where one person may act on the sessions of another account: the record names the person (INV-12)."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.errors import Refused
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.store import Store
from openai4s_provisioner.orchestration.tasks import TaskDesk
from openai4s_provisioner.orchestration.walltime_desk import WalltimeDesk
from openai4s_provisioner.testing.control_lab import OWNER, ControlLab, in_lab
from openai4s_provisioner.testing.faulty_backends import ManualClock

from .test_walltime import BackendWithAnEnd


def test_extensions_and_tasks_are_recorded_with_the_person_who_asked(tmp_path: Path) -> None:
    clock = ManualClock()
    backend = BackendWithAnEnd(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        await lab.turns()
        walltime = WalltimeDesk(lab.config, lab.backends, lab.store, lab.clock)
        await walltime.extend(opened.workload_id, 60, "a colleague", owner=OWNER)
        desk = TaskDesk(lab.config, lab.backends, lab.store, lab.clock)
        with pytest.raises(Refused) as refused:  # not for whose it is: this backend runs none
            await desk.open(opened.workload_id, "a colleague", ["true"], "/", owner=OWNER)
        assert refused.value.reason is Reason.BACKEND_REJECTED
        events = await lab.store.run(Store.events, opened.workload_id)
        recorded = [(each.kind, each.actor) for each in events if each.kind in ("extended", "task_refused")]
        assert recorded == [("extended", "a colleague"), ("task_refused", "a colleague")]
        with pytest.raises(Refused) as refused:
            await walltime.extend(opened.workload_id, 60, OWNER, owner="somebody else")
        assert refused.value.reason is Reason.AUTHORIZATION_DENIED

    in_lab(tmp_path, scenario, backend, clock=clock)
