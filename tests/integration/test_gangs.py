"""Sessions over several ranks, with a real worker process for each: all of them count, and a lost one is named."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from openai4s_provisioner.orchestration.models import Phase
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.store import Situation, Store
from openai4s_provisioner.testing.rank_backend import pids_of

from .conftest import SessionLab
from .gangs import Offer, offer, state_of

__all__ = ["offer"]  # a fixture

pytestmark = pytest.mark.anyio


async def until(lab: SessionLab, condition: Callable[[Situation], bool], what: str) -> Situation:
    deadline = asyncio.get_running_loop().time() + 40
    while not condition(now := await lab.situation()):
        assert asyncio.get_running_loop().time() < deadline, what
        await asyncio.sleep(0.05)
    return now


@pytest.mark.parametrize("nodes", [2, 4])
async def test_every_rank_counts_and_the_first_one_hosts_the_kernel(
    offer: Offer, lab: SessionLab, place: Any, no_process_left: Any, nodes: int
) -> None:
    offer(nodes)
    await lab.start()
    now = await lab.situation()
    readiness = now.readiness()
    assert readiness.is_ready
    assert (readiness.ranks, readiness.workers, readiness.workspaces) == (nodes, nodes, nodes)
    assert [worker.rank for worker in now.workers] == list(range(nodes))
    workers = pids_of(state_of(place))
    assert sorted(workers) == list(range(nodes))
    kernel = int(now.launches[0].pid or 0)
    assert workers[0] in [each.pid for each in psutil.Process(kernel).parents()]
    assert await lab.value("6 * 7") == "42"
    await lab.manager.restart_kernel(now=True)
    await lab.connect()
    assert pids_of(state_of(place)) == workers, "a restart keeps the allocation and every worker in it"
    await lab.manager.shutdown_kernel(now=True)
    no_process_left()
    assert (await lab.situation()).workload.phase is Phase.COMPLETED


async def test_one_rank_that_is_killed_takes_the_attempt_along_and_the_next_one_is_whole(
    offer: Offer, lab: SessionLab, place: Any
) -> None:
    offer(4)
    await lab.start()
    await lab.run("x = 1")
    first = pids_of(state_of(place))
    os.kill(first[2], signal.SIGKILL)
    now = await until(lab, lambda now: now.workload.epoch == 2 and now.readiness().is_ready, "it did not come back")
    again = pids_of(state_of(place))
    assert sorted(again) == [0, 1, 2, 3]
    assert not set(again.values()) & set(first.values())
    assert not [pid for pid in first.values() if psutil.pid_exists(pid)]
    assert len(now.workers) == 4
    await lab.connect()
    assert await lab.value("x") == "NameError"
    events = await recorded(lab)
    lost = next(each for each in events if each.kind == "recovering")
    assert lost.reason is Reason.WORKER_LOST
    assert "worker 2 on" in lost.detail


async def test_a_rank_that_ends_is_noticed_though_nobody_says_so(offer: Offer, lab: SessionLab, place: Any) -> None:
    offer(2, together=False)
    await lab.start()
    first = pids_of(state_of(place))
    os.kill(first[1], signal.SIGTERM)  # it says goodbye; the other one goes on
    await until(lab, lambda now: now.workload.epoch == 2 and now.readiness().is_ready, "it did not come back")
    assert not [pid for pid in first.values() if psutil.pid_exists(pid)], "the attempt is replaced whole"
    lost = [each for each in await recorded(lab) if each.kind in ("retiring", "recovering")]
    assert all(each.reason is Reason.WORKER_LOST for each in lost)
    assert any("Worker 1 on" in each.detail for each in lost)


async def test_a_rank_that_falls_silent_is_lost_after_its_time(offer: Offer, lab: SessionLab, place: Any) -> None:
    offer(2, control="worker_lost_s = 3", together=False)
    await lab.start()
    first = pids_of(state_of(place))
    os.kill(first[1], signal.SIGKILL)
    silent = await until(lab, lambda now: now.interrupted_since is not None, "the broken connection is seen")
    assert silent.interrupted_place.startswith("worker 1 on ")
    assert silent.interrupted_place.endswith(" (of 2)")
    await until(lab, lambda now: now.workload.epoch == 2 and now.readiness().is_ready, "it did not come back")
    assert any("Worker 1 on" in each.detail and "fell silent" in each.detail for each in await recorded(lab))


async def test_a_rank_that_never_dials_is_named(offer: Offer, lab: SessionLab, no_process_left: Any) -> None:
    offer(4, control="registration_timeout_s = 6", absent=2)
    with pytest.raises(Exception, match="3 of 4 workers connected; missing: 2") as refused:
        await lab.start()
    assert Reason.WORKER_REGISTRATION_TIMEOUT.sentence in str(refused.value)
    no_process_left()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give one process another view of a folder")
async def test_a_rank_whose_workspace_is_another_folder_is_named(
    offer: Offer, lab: SessionLab, place: Any, no_process_left: Any
) -> None:
    other = place.root / "other"
    other.mkdir()
    offer(2, control="workspace_settle_s = 3", elsewhere=f"1={other}={lab.work}")
    with pytest.raises(Exception, match="Worker 1: ") as refused:
        await lab.start()
    assert Reason.WORKSPACE_UNREACHABLE.sentence in str(refused.value)
    no_process_left()


async def recorded(lab: SessionLab) -> list[Any]:
    running = lab.control._running
    assert running is not None
    return await running.sessions._store.run(Store.events, lab.workload_id)
