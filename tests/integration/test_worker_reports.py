"""What workers report, what is made of it, and what is decided where nobody reports: witnesses and clocks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner.orchestration.config import Policy
from openai4s_provisioner.orchestration.errors import SessionEnded, StateError
from openai4s_provisioner.orchestration.models import LinkState, Phase
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


# -- what workers report -----------------------------------------------------------------------------------------------


def test_a_kernel_that_ends_with_its_whole_allocation_is_not_what_failed(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    """A cancel from outside reaches the worker and the kernel that starts at the same moment: the backend knows why."""

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        await lab.turns(2)
        await lab.dial(opened)
        waiting = asyncio.ensure_future(lab.sessions.wait_ready(opened.workload_id, opened.launch_id))
        ended = {"type": "kernel_exited", "exit_code": None, "signal": 15, "tail": "", "with_worker": True}
        await lab.report(opened, {"launch_id": opened.launch_id, **ended})
        await lab.report(opened, {"type": "ended", "exit_code": 0, "reason": "signal SIGTERM"})
        backend.say(Observed.CANCELLED, Reason.ADMIN_CANCELLED)
        await lab.turns(3)
        with pytest.raises(SessionEnded) as caught:
            await asyncio.wait_for(waiting, 5)
        assert caught.value.reason is Reason.ADMIN_CANCELLED

    in_lab(tmp_path, scenario, backend, clock=clock)


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


def test_a_workspace_that_is_reported_twice_before_it_is_proven_fails_nobody(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a kernel does that starts again at once: the first proof takes the answers away that the second looks for."""
    looks: list[int] = []

    def seen_by_the_first_only(*args: Any) -> bool:
        looks.append(1)
        return len(looks) == 1

    monkeypatch.setattr("openai4s_provisioner.orchestration.reports.answer_holds", seen_by_the_first_only)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open()
        await lab.turns(2)
        await lab.dial(opened)
        nonce = lab.issuer.workspace_nonce(opened.allocation_id)
        for _ in range(2):
            lab.reports.worker_message(opened.allocation_id, 0, {"type": "workspace", "ok": True, "nonce": nonce})
        await lab.heard()
        assert len(looks) > 2, "the second looked until its time was over"
        assert (await lab.sessions.readiness(opened.workload_id)).missing is Condition.KERNEL_READY
        assert (await lab.situation(opened)).workload.reason is None

    in_lab(tmp_path, scenario, backend, clock=clock, policy=Policy(workspace_settle_s=0.3))


def test_what_is_reported_while_the_state_is_locked_is_written_afterwards_in_its_order(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openai4s_provisioner.orchestration.insistence._FIRST_PAUSE_S", 0.01)
    write, failures = Store.kernel_isolated, [StateError("locked"), StateError("locked")]

    def fails_at_first(self: Store, launch_id: str, isolated: bool) -> None:
        if failures:
            raise failures.pop()
        write(self, launch_id, isolated)

    monkeypatch.setattr(Store, "kernel_isolated", fails_at_first)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        assert (await lab.situation(opened)).allocation.phase is Phase.ACTIVE

    in_lab(tmp_path, scenario, backend, clock=clock)
