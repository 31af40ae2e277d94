"""The control plane as a whole over a fake backend: becoming ready, and every way to end."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.errors import SessionEnded
from openai4s_provisioner.orchestration.models import Phase
from openai4s_provisioner.orchestration.ports import Observed
from openai4s_provisioner.orchestration.readiness import Condition
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.store import Store
from openai4s_provisioner.testing.control_lab import OWNER, ControlLab, in_lab
from openai4s_provisioner.testing.faulty_backends import (
    ManualClock,
    ObedientBackend,
)


@pytest.fixture
def backend(clock: ManualClock) -> ObedientBackend:
    return ObedientBackend(clock)


# -- becoming ready ----------------------------------------------------------------------------------------------------


def test_the_four_conditions_come_true_one_after_the_other(tmp_path: Path, clock: ManualClock) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open()
        waiting = asyncio.ensure_future(lab.sessions.wait_ready(opened.workload_id, opened.launch_id))
        sentences = [(await lab.sessions.readiness(opened.workload_id)).sentence]
        await lab.turns(2)
        sentences.append((await lab.sessions.readiness(opened.workload_id)).sentence)
        for rank in (1, 0):
            await lab.dial(opened, rank)
            sentences.append((await lab.sessions.readiness(opened.workload_id)).sentence)
        for rank in (0, 1):
            await lab.answer_workspace(opened, rank)
            sentences.append((await lab.sessions.readiness(opened.workload_id)).sentence)
        assert not waiting.done()
        await lab.start_kernel(opened)
        await asyncio.wait_for(waiting, 5)
        await lab.turns()
        assert (await lab.situation(opened)).allocation.phase is Phase.ACTIVE
        assert sentences == [
            "0 of 4 conditions: waiting for the allocation",
            "1 of 4 conditions: waiting for the worker, 0 of 2 connected",
            "1 of 4 conditions: waiting for the worker, 1 of 2 connected",
            "2 of 4 conditions: waiting for the workspace, 0 of 2 ready",
            "2 of 4 conditions: waiting for the workspace, 1 of 2 ready",
            "3 of 4 conditions: waiting for the kernel to answer",
        ]

    in_lab(tmp_path, scenario, backend, clock=clock, nodes=2)


def test_a_worker_that_does_not_come_is_waited_for_with_what_it_wrote_down(tmp_path: Path, clock: ManualClock) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open()
        await lab.turns(2)
        await lab.dial(opened, 0)
        clock.forward(5)
        await lab.turns()
        waits = "1 of 4 conditions: waiting for the worker, 1 of 2 connected"
        assert (await lab.sessions.readiness(opened.workload_id)).sentence == waits
        failed = [{"address": "tls:login:9000", "cause": "Connection refused"}]
        (lab.preparer.attempt_dir(opened.allocation_id) / "way-1.json").write_text(json.dumps({"failed": failed}))
        await lab.turns()
        told = f"{waits} (worker 1 cannot reach this server at login:9000: Connection refused)"
        assert (await lab.sessions.readiness(opened.workload_id)).sentence == told
        await lab.dial(opened, 1)
        ready = await lab.sessions.readiness(opened.workload_id)
        assert ready.sentence == "2 of 4 conditions: waiting for the workspace, 0 of 2 ready", (
            "what is over is not told"
        )

    in_lab(tmp_path, scenario, backend, clock=clock, nodes=2)


def test_a_kernel_that_answers_without_proof_of_isolation_is_not_ready(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open()
        await lab.turns(2)
        await lab.dial(opened)
        await lab.answer_workspace(opened)
        await lab.sessions.kernel_ready(opened.launch_id)
        assert (await lab.sessions.readiness(opened.workload_id)).missing is Condition.KERNEL_READY

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_the_attempt_is_written_privately_and_holds_what_the_worker_needs(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open()
        await lab.turns()
        folder = lab.preparer.attempt_dir(opened.allocation_id)
        file = folder / "rank-0.json"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        content = json.loads(file.read_text())
        assert content["launch"]["env"] == {"HF_TOKEN": "x"}
        nonce = lab.workspace / content["workspace"]["nonce_name"]
        assert nonce.read_text() == lab.issuer.workspace_nonce(opened.allocation_id)
        assert b"HF_TOKEN" not in (lab.state_dir / "state.db").read_bytes()

    in_lab(tmp_path, scenario, backend, clock=clock)


# -- ending ------------------------------------------------------------------------------------------------------------


def test_shutting_the_only_kernel_down_ends_the_allocation_and_leaves_no_file(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        await lab.sessions.release_kernel("k1", "a person")
        await lab.turns()
        assert lab.channel.types() == ["end"]
        await lab.report(opened, {"type": "ended", "exit_code": 0, "reason": "USER_CANCELLED"})
        backend.say(Observed.COMPLETED)
        await lab.turns()
        workload = await lab.sessions.wait_over(opened.workload_id)
        assert (workload.phase, workload.reason) == (Phase.COMPLETED, Reason.USER_CANCELLED)
        assert backend.cancels == 0
        assert list(lab.workspace.iterdir()) == []
        assert list((lab.exchange_dir / "attempts").iterdir()) == []
        assert backend.acknowledged == [backend.allocations[0].handle]
        assert lab.channel.forgotten == [opened.allocation_id]
        assert lab.launches == {}
        assert await lab.store.run(Store.debris, lab.daemon.daemon_id) == []

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_a_worker_that_does_not_end_by_itself_is_cancelled(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        await lab.sessions.release_kernel("k1", "a person")
        await lab.turns(2)
        assert backend.cancels == 0
        clock.forward(lab.policy.drain_s)
        await lab.turns(2)
        assert backend.cancels == 1
        assert (await lab.situation(opened)).workload.phase is Phase.CANCELLED
        assert lab.channel.types() == ["end"]

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_a_stop_before_the_submission_submits_nothing(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        assert await lab.sessions.request_stop(opened.workload_id, Reason.USER_CANCELLED, OWNER) is True
        assert await lab.sessions.request_stop(opened.workload_id, Reason.ADMIN_CANCELLED, OWNER) is False
        await lab.turns()
        workload = await lab.sessions.wait_over(opened.workload_id)
        assert (workload.phase, workload.reason, workload.actor) == (Phase.CANCELLED, Reason.USER_CANCELLED, OWNER)
        assert backend.submits == 0
        assert not lab.exchange_dir.exists()

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_a_stop_while_queued_is_cancelled_without_waiting_for_a_worker(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        await lab.turns()
        backend.say(Observed.PENDING)
        await lab.turns()
        await lab.sessions.request_stop(opened.workload_id, Reason.USER_CANCELLED, OWNER)
        await lab.turns(2)
        assert backend.cancels == 1
        assert (await lab.situation(opened)).workload.phase is Phase.CANCELLED

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_the_last_kernel_ends_the_allocation_and_not_the_first(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        second = lab.launch()
        await lab.sessions.launch_kernel(opened.workload_id, "k2", second)
        assert lab.channel.types() == ["launch"]
        await lab.sessions.release_kernel("k1", OWNER)
        await lab.turns()
        assert (await lab.situation(opened)).allocation.phase is Phase.ACTIVE
        assert lab.channel.types() == ["launch", "stop_kernel"]
        await lab.sessions.release_kernel("k2", OWNER)
        await lab.turns()
        assert (await lab.situation(opened)).allocation.phase is Phase.RELEASING
        assert backend.submits == 1

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_a_restart_goes_into_the_held_allocation(tmp_path: Path, clock: ManualClock, backend: ObedientBackend) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        launch = lab.launch()
        await lab.sessions.launch_kernel(opened.workload_id, "k1", launch)
        assert (await lab.sessions.readiness(opened.workload_id)).missing is Condition.KERNEL_READY
        assert lab.channel.types() == ["stop_kernel", "launch"]
        with pytest.raises(SessionEnded, match="taken its place"):
            await lab.sessions.wait_ready(opened.workload_id, opened.launch_id)
        await lab.start_kernel(opened, launch.launch_id)
        await lab.sessions.wait_ready(opened.workload_id, launch.launch_id)
        await lab.turns(2)
        assert (backend.submits, len(backend.allocations)) == (1, 1)

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_a_restart_before_the_worker_dials_in_is_kept_for_it(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        await lab.turns(2)
        await lab.sessions.launch_kernel(opened.workload_id, "k1", lab.launch())
        assert lab.channel.types() == []
        await lab.dial(opened)
        assert lab.channel.types() == ["stop_kernel", "launch"]

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_nothing_is_launched_in_a_session_that_is_over(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        backend.say(Observed.FAILED, Reason.OUT_OF_MEMORY)
        await lab.turns()
        with pytest.raises(SessionEnded) as caught:
            await lab.sessions.launch_kernel(opened.workload_id, "k1", lab.launch())
        assert caught.value.reason is Reason.OUT_OF_MEMORY
        assert backend.submits == 1

    in_lab(tmp_path, scenario, backend, clock=clock)
