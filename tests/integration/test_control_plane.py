"""The control plane as a whole over a fake backend: submitting, becoming ready, and every way to end."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.config import Policy
from openai4s_provisioner.orchestration.errors import Refused, SessionEnded
from openai4s_provisioner.orchestration.models import LinkState, Phase
from openai4s_provisioner.orchestration.ports import Observed
from openai4s_provisioner.orchestration.readiness import Condition
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.store import Store
from openai4s_provisioner.testing.control_lab import OWNER, ControlLab, in_lab
from openai4s_provisioner.testing.faulty_backends import (
    BackendThatRejects,
    ManualClock,
    ObedientBackend,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


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


# -- what workers report -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "reason", "told"),
    [
        (
            {"type": "isolation", "ok": False, "sentence": "It could read the other's files.", "attacks": {}},
            Reason.ISOLATION_UNVERIFIED,
            "It could read the other's files.",
        ),
        (
            {"type": "workspace", "ok": False, "code": "read_only", "detail": "mounted read-only", "nonce": ""},
            Reason.WORKSPACE_UNREACHABLE,
            "read_only",
        ),
        (
            {"type": "workspace", "ok": True, "code": "ready", "detail": "", "nonce": "of another folder"},
            Reason.WORKSPACE_UNREACHABLE,
            "wrong_mount",
        ),
        (
            {"type": "kernel_exited", "exit_code": 1, "signal": None, "tail": "No module named ipykernel"},
            Reason.KERNEL_START_FAILED,
            "No module named ipykernel",
        ),
    ],
)
def test_a_bad_report_before_ready_ends_the_session_with_its_reason(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend, message: dict[str, object], reason: Reason, told: str
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        await lab.turns(2)
        await lab.dial(opened)
        waiting = asyncio.ensure_future(lab.sessions.wait_ready(opened.workload_id, opened.launch_id))
        await lab.report(opened, {"launch_id": opened.launch_id, **message})
        with pytest.raises(SessionEnded, match=told) as caught:
            await asyncio.wait_for(waiting, 5)
        assert caught.value.reason is reason
        await lab.turns()
        await lab.report(opened, {"type": "ended", "exit_code": 0, "reason": reason})
        backend.say(Observed.COMPLETED)
        await lab.turns()
        workload = (await lab.situation(opened)).workload
        assert (workload.phase, workload.reason) == (Phase.FAILED, reason)
        with pytest.raises(SessionEnded, match=told) as later:
            await lab.sessions.wait_ready(opened.workload_id, opened.launch_id)
        assert [str(error.value).count(reason.sentence) for error in (caught, later)] == [1, 1], "said once"

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_an_answer_that_does_not_appear_here_means_another_folder(tmp_path: Path, clock: ManualClock) -> None:
    from openai4s_provisioner.orchestration.config import Policy

    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        await lab.turns(2)
        await lab.dial(opened)
        nonce = lab.issuer.workspace_nonce(opened.allocation_id)
        await lab.report(opened, {"type": "workspace", "ok": True, "nonce": nonce, "answer_name": "/etc/passwd"})
        workload = (await lab.situation(opened)).workload
        assert workload.reason is Reason.WORKSPACE_UNREACHABLE
        assert str(lab.workspace) in workload.reason_detail

    in_lab(tmp_path, scenario, backend, clock=clock, policy=Policy(workspace_settle_s=0.3))


def test_a_kernel_that_dies_later_leaves_the_allocation_and_its_exit_can_be_read(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        exited = {"type": "kernel_exited", "launch_id": opened.launch_id, "exit_code": None, "signal": 9, "tail": "x"}
        await lab.report(opened, exited)
        launch = (await lab.situation(opened)).launch("k1")
        assert launch is not None
        assert launch.exit is not None
        assert (launch.exit.signal, launch.exit.exit_code) == (9, None)
        await lab.turns()
        assert (await lab.situation(opened)).allocation.phase is Phase.ACTIVE
        assert (await lab.sessions.readiness(opened.workload_id)).missing is Condition.KERNEL_READY

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_garbage_and_foreign_reports_change_nothing(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened, other = await lab.active_session("k1"), await lab.active_session("k2")
        before = await lab.situation(opened)
        await lab.report(opened, {"type": "explode"})
        await lab.report(opened, {})
        await lab.report(opened, {"type": "kernel_started", "launch_id": opened.launch_id, "pid": "many"})
        await lab.report(other, {"type": "kernel_exited", "launch_id": opened.launch_id, "exit_code": 1})
        assert await lab.situation(opened) == before

    in_lab(tmp_path, scenario, backend, clock=clock)


# -- witnesses and clocks ----------------------------------------------------------------------------------------------


def test_a_worker_that_never_registers_gives_the_allocation_back_and_quotes_its_log(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        await lab.turns(2)
        log = lab.preparer.attempt_dir(opened.allocation_id) / "worker-0.log"
        log.write_text("unix:/nowhere/gw.sock refused\n")
        clock.forward(301.0)
        await lab.turns(3)
        workload = (await lab.situation(opened)).workload
        assert (workload.phase, workload.reason) == (Phase.FAILED, Reason.WORKER_REGISTRATION_TIMEOUT)
        assert "gw.sock refused" in workload.reason_detail
        assert backend.running == []
        kept = list((lab.state_dir / "logs").iterdir())
        assert [path.read_text() for path in kept] == ["unix:/nowhere/gw.sock refused"]

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_a_rank_that_stays_silent_ends_the_session_as_lost(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        await lab.link(opened, LinkState.RECONNECTING)
        clock.forward(lab.policy.worker_lost_s - 1)
        await lab.turns()
        assert (await lab.situation(opened)).allocation.phase is Phase.ACTIVE
        clock.forward(1)
        await lab.turns(2)
        assert (await lab.situation(opened)).workload.reason is Reason.WORKER_LOST

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_our_reason_survives_what_the_backend_reports_and_both_are_kept(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        await lab.sessions.request_stop(opened.workload_id, Reason.SESSION_IDLE_TIMEOUT, "the idle clock")
        await lab.turns()
        backend.say(Observed.FAILED, Reason.OUT_OF_MEMORY)
        await lab.turns()
        situation = await lab.situation(opened)
        assert (situation.workload.phase, situation.workload.reason) == (Phase.CANCELLED, Reason.SESSION_IDLE_TIMEOUT)
        assert situation.allocation.reason is Reason.OUT_OF_MEMORY

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_every_stop_and_release_is_recorded_with_who_and_why(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        await lab.sessions.release_kernel("k1", "a person", Reason.USER_CANCELLED)
        await lab.sessions.request_stop(opened.workload_id, Reason.ADMIN_CANCELLED, "an admin")
        events = await lab.store.run(Store.events, opened.workload_id)
        told = [(event.kind, event.actor, event.reason) for event in events]
        assert told == [
            ("opened", OWNER, None),
            ("kernel_released", "a person", Reason.USER_CANCELLED),
            ("stop_requested", "a person", Reason.USER_CANCELLED),
            ("stop_requested_again", "an admin", Reason.ADMIN_CANCELLED),
        ]

    in_lab(tmp_path, scenario, backend, clock=clock)


# -- opening -----------------------------------------------------------------------------------------------------------


def test_a_rejected_submission_ends_the_session_in_the_backends_words(tmp_path: Path, clock: ManualClock) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        waiting = asyncio.ensure_future(lab.sessions.wait_ready(opened.workload_id, opened.launch_id))
        await lab.turns()
        with pytest.raises(SessionEnded, match="No machine has that much memory") as caught:
            await asyncio.wait_for(waiting, 5)
        assert caught.value.reason is Reason.UNSCHEDULABLE

    in_lab(tmp_path, scenario, BackendThatRejects(clock), clock=clock)


def test_a_caller_that_gives_up_while_opening_leaves_a_stopped_session_and_no_submission(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        await lab.daemon.register()
        opening = asyncio.ensure_future(lab.open("k1"))
        while not lab.launches:  # noqa: ASYNC110  handed over, not yet answered
            await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await lab.turns(2)
        assert backend.submits == 0
        assert await lab.store.run(Store.situations, lab.daemon.daemon_id) == []

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_the_last_place_is_given_once(tmp_path: Path, clock: ManualClock, backend: ObedientBackend) -> None:
    async def scenario(lab: ControlLab) -> None:
        answers = await asyncio.gather(*(lab.open() for _ in range(5)), return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, Refused)]
        assert len(refused) == 3
        assert {each.reason for each in refused} == {Reason.QUOTA_EXCEEDED}
        events = await lab.store.run(Store.events, None)
        assert [event.kind for event in events] == ["refused"] * 3

    in_lab(tmp_path, scenario, backend, clock=clock, max_sessions=2)


def test_a_kernel_holds_one_session_at_a_time(tmp_path: Path, clock: ManualClock, backend: ObedientBackend) -> None:
    async def scenario(lab: ControlLab) -> None:
        await lab.active_session("k1")
        with pytest.raises(Refused, match="already holds a session"):
            await lab.open("k1")
        backend.say(Observed.FAILED, Reason.TIME_LIMIT_EXCEEDED)
        await lab.turns()
        await lab.open("k1")  # "Start again" after the end is a new session of the same kernel id

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_a_workspace_that_cannot_be_written_here_ends_the_attempt_with_that_reason(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        os.rename(lab.workspace, tmp_path / "moved")
        await lab.turns()
        workload = (await lab.situation(opened)).workload
        assert (workload.phase, workload.reason) == (Phase.FAILED, Reason.WORKSPACE_UNREACHABLE)
        assert str(lab.workspace) in workload.reason_detail
        assert backend.submits == 0

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_the_logs_of_failed_attempts_are_kept_and_bounded(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        for number in range(23):
            opened = await lab.open(f"k{number}")
            await lab.turns(2)
            (lab.preparer.attempt_dir(opened.allocation_id) / "worker-0.log").write_text(f"attempt {number}")
            backend.say(Observed.FAILED)
            await lab.turns()
        assert len(list((lab.state_dir / "logs").iterdir())) == 20

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_the_loops_drive_a_session_by_themselves(tmp_path: Path, clock: ManualClock, backend: ObedientBackend) -> None:
    async def scenario(lab: ControlLab) -> None:
        lab.reports.start()
        lab.reconciler.start()
        opened = await lab.open("k1")
        async with asyncio.timeout(5):
            async for now in lab.sessions.changes(opened.workload_id):
                if now.allocation.granted_at is not None:
                    break
        await lab.dial(opened)
        await lab.answer_workspace(opened)
        await lab.start_kernel(opened)
        async with asyncio.timeout(5):
            async for now in lab.sessions.changes(opened.workload_id):
                if now.allocation.phase is Phase.ACTIVE:
                    break
            await lab.sessions.release_kernel("k1", OWNER)
            async for now in lab.sessions.changes(opened.workload_id):
                if now.allocation.drain_since is not None:
                    break
            backend.say(Observed.COMPLETED)
            workload = await lab.sessions.wait_over(opened.workload_id)
        assert workload.phase is Phase.COMPLETED

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_what_is_ending_is_looked_at_again_soon_however_often_nothing_has_changed(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    """A worker says goodbye some moments before its backend knows: a person does not wait for the next period."""

    async def scenario(lab: ControlLab) -> None:
        lab.reports.start()
        lab.reconciler.start()
        opened = await lab.open("k1")
        async with asyncio.timeout(30):
            async for now in lab.sessions.changes(opened.workload_id):
                if now.allocation.granted_at is not None:
                    break
            await lab.dial(opened)
            await lab.sessions.release_kernel("k1", OWNER)
            await lab.report(opened, {"type": "ended", "exit_code": 0, "reason": "released"})
            for _ in range(4):
                before = backend.observes
                while backend.observes == before:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            backend.say(Observed.COMPLETED)
            assert (await lab.sessions.wait_over(opened.workload_id)).phase is Phase.COMPLETED

    in_lab(tmp_path, scenario, backend, clock=clock, policy=Policy(period_s=3600.0))
