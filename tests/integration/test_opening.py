"""Opening a session: what is given up, refused or rejected on the way, and what is left of it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.config import Policy
from openai4s_provisioner.orchestration.errors import Refused, SessionEnded
from openai4s_provisioner.orchestration.models import Phase
from openai4s_provisioner.orchestration.ports import Observed
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.store import Store
from openai4s_provisioner.testing.control_lab import OWNER, ControlLab, in_lab
from openai4s_provisioner.testing.faulty_backends import (
    BackendThatRejects,
    ManualClock,
    ObedientBackend,
)


@pytest.fixture
def backend(clock: ManualClock) -> ObedientBackend:
    return ObedientBackend(clock)


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
