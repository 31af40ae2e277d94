"""The reclaimer over a whole control plane with a clock that the test moves: the races, and what survives a restart."""

from __future__ import annotations

import pytest

from openai4s_provisioner.orchestration.errors import SessionEnded
from openai4s_provisioner.orchestration.models import Desired, LeasePolicy, Phase
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.reclaimer import LeaseState
from openai4s_provisioner.orchestration.session import OpenedSession
from openai4s_provisioner.orchestration.store import leases
from openai4s_provisioner.testing.control_lab import OWNER, ControlLab
from openai4s_provisioner.testing.faulty_backends import ManualClock, ObedientBackend

from .conftest import Runs

POLICY = LeasePolicy()
MS = 0.001


@pytest.fixture
def backend(clock: ManualClock) -> ObedientBackend:
    return ObedientBackend(clock)


async def says(lab: ControlLab, opened: OpenedSession, doing: str, began: bool = False) -> None:
    message = {"type": "activity", "launch_id": opened.launch_id, "doing": doing, "began": began}
    await lab.report(opened, message)


async def idle_session(lab: ControlLab, kernel_id: str = "k") -> OpenedSession:
    opened = await lab.active_session(kernel_id)
    await says(lab, opened, "idle")
    return opened


async def wish(lab: ControlLab, opened: OpenedSession) -> tuple[Desired, Reason | None]:
    workload = (await lab.situation(opened)).workload
    return workload.desired, workload.reason


RUNNING = (Desired.RUNNING, None)
IDLE = (Desired.STOPPED, Reason.SESSION_IDLE_TIMEOUT)
OUTLIVED = (Desired.STOPPED, Reason.SESSION_MAX_LIFETIME_EXCEEDED)


def test_an_idle_session_ends_at_its_time_and_not_a_millisecond_before(
    runs: Runs, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await idle_session(lab)
        clock.forward(POLICY.idle_ttl_s - MS)
        await lab.reclaimer.turn()
        assert await wish(lab, opened) == RUNNING
        clock.forward(MS)
        await lab.reclaimer.turn()
        assert await wish(lab, opened) == IDLE
        await lab.turns_until(lambda: not backend.running)
        await lab.turns()
        assert (await lab.situation(opened)).workload.phase in (Phase.COMPLETED, Phase.CANCELLED)

    runs(scenario, backend)


def test_a_keep_in_the_last_millisecond_wins_and_one_after_the_sweep_is_refused(
    runs: Runs, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await idle_session(lab)
        clock.forward(POLICY.idle_ttl_s - MS)
        kept = await lab.store.run(leases.keep, "k", OWNER, clock())
        assert kept.until is not None
        assert kept.until.at == clock() + POLICY.idle_ttl_s
        clock.forward(2 * MS)
        await lab.reclaimer.turn()
        assert await wish(lab, opened) == RUNNING
        clock.forward(POLICY.idle_ttl_s)
        await lab.reclaimer.turn()
        with pytest.raises(SessionEnded, match="too late"):
            await lab.store.run(leases.keep, "k", OWNER, clock())
        assert await wish(lab, opened) == IDLE
        assert (await lab.events(opened)).count("kept") == 1

    runs(scenario, backend)


def test_a_sweep_that_was_decided_before_a_touch_changes_nothing(
    runs: Runs, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await idle_session(lab)
        clock.forward(POLICY.idle_ttl_s)
        (stale,) = await lab.store.run(leases.running, lab.daemon.daemon_id)
        assert isinstance(leases.decide(stale, clock()), leases.Expire)
        await says(lab, opened, "busy", began=True)
        await lab.store.run(leases.sweep, opened.workload_id, clock())
        assert await wish(lab, opened) == RUNNING

    runs(scenario, backend)


def test_two_sweeps_wish_once(runs: Runs, clock: ManualClock, backend: ObedientBackend) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await idle_session(lab)
        clock.forward(POLICY.idle_ttl_s)
        for _ in range(2):
            await lab.store.run(leases.sweep, opened.workload_id, clock())
            await lab.reclaimer.turn()
        events = await lab.events(opened)
        assert events.count("stop_requested") == 1
        assert "stop_requested_again" not in events

    runs(scenario, backend)


def test_a_restart_between_the_sweep_and_the_barrier_keeps_the_reason(
    runs: Runs, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await idle_session(lab)
        clock.forward(POLICY.idle_ttl_s)
        await lab.reclaimer.turn()
        await lab.restart()
        await lab.turns_until(lambda: not backend.running)
        await lab.turns()
        assert await wish(lab, opened) == IDLE
        assert (await lab.situation(opened)).workload.phase.is_terminal

    runs(scenario, backend)


def test_a_restart_does_not_warn_a_second_time(runs: Runs, clock: ManualClock, backend: ObedientBackend) -> None:
    async def scenario(lab: ControlLab) -> None:
        await idle_session(lab)
        clock.forward(POLICY.idle_ttl_s - POLICY.warn_s)
        assert await lab.reclaimer.turn() == clock() + POLICY.warn_s
        lab._build_sessions()  # a reclaimer that remembers nothing
        for _ in range(3):
            await lab.reclaimer.turn()
        (warning,) = lab.notices
        assert warning.state is LeaseState.WARNING
        assert warning.ends_at == clock() + POLICY.warn_s
        assert warning.seconds_left == POLICY.warn_s

    runs(scenario, backend)


def test_a_warning_is_taken_back_once_and_given_again_for_the_next_end(
    runs: Runs, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await idle_session(lab)
        clock.forward(POLICY.idle_ttl_s - POLICY.warn_s)
        await lab.reclaimer.turn()
        await says(lab, opened, "idle", began=True)
        for _ in range(2):
            await lab.reclaimer.turn()
        clock.forward(POLICY.idle_ttl_s - POLICY.warn_s)
        await lab.reclaimer.turn()
        assert [notice.state for notice in lab.notices] == [
            LeaseState.WARNING,
            LeaseState.WITHDRAWN,
            LeaseState.WARNING,
        ]
        assert [kind for kind in await lab.events(opened) if kind.startswith("lease")] == [
            "lease_warning",
            "lease_warning_withdrawn",
            "lease_warning",
        ]

    runs(scenario, backend)


def test_the_absolute_clock_ends_a_session_that_is_kept_and_busy(
    runs: Runs, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await idle_session(lab)
        await says(lab, opened, "busy", began=True)
        for _ in range(POLICY.max_lifetime_s // 3600 - 1):
            clock.forward(3600)
            await lab.store.run(leases.keep, "k", OWNER, clock())
            await lab.reclaimer.turn()
            assert await wish(lab, opened) == RUNNING
        clock.forward(3600 - POLICY.warn_s)
        await lab.reclaimer.turn()
        (warning,) = lab.notices
        assert not warning.can_be_kept
        clock.forward(POLICY.warn_s)
        await lab.store.run(leases.keep, "k", OWNER, clock())
        await lab.reclaimer.turn()
        assert await wish(lab, opened) == OUTLIVED

    runs(scenario, backend)


def test_a_queued_session_is_never_idle_and_its_clocks_start_when_the_kernel_is_ready(
    runs: Runs, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k")
        clock.forward(POLICY.max_lifetime_s * 3)
        await lab.reclaimer.turn()
        assert await wish(lab, opened) == RUNNING
        await lab.turns(2)
        await lab.dial(opened)
        await lab.answer_workspace(opened)
        await lab.start_kernel(opened)
        await lab.turns(2)
        await says(lab, opened, "idle")
        clock.forward(POLICY.idle_ttl_s - MS)
        await lab.reclaimer.turn()
        assert await wish(lab, opened) == RUNNING

    runs(scenario, backend)


def test_a_kernel_that_cannot_be_read_is_not_taken_for_idle(
    runs: Runs, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k")
        clock.forward(POLICY.max_lifetime_s - MS)
        await lab.reclaimer.turn()
        assert await wish(lab, opened) == RUNNING
        clock.forward(MS)
        await lab.reclaimer.turn()
        assert await wish(lab, opened) == OUTLIVED

    runs(scenario, backend)


def test_a_dead_kernel_does_not_hold_the_allocation_for_ever(
    runs: Runs, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await idle_session(lab)
        await says(lab, opened, "busy", began=True)
        exited = {"type": "kernel_exited", "launch_id": opened.launch_id, "exit_code": 1, "signal": None, "tail": ""}
        await lab.report(opened, exited)
        clock.forward(POLICY.idle_ttl_s)
        await lab.reclaimer.turn()
        assert await wish(lab, opened) == IDLE

    runs(scenario, backend)


def test_an_allocation_ends_with_the_idle_clock_of_its_last_kernel(
    runs: Runs, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await idle_session(lab, "first")
        second = lab.launch()
        await lab.sessions.launch_kernel(opened.workload_id, "second", second)
        clock.forward(POLICY.idle_ttl_s)
        await lab.reclaimer.turn()
        assert await wish(lab, opened) == RUNNING, "a kernel that still starts is not idle"
        await lab.start_kernel(opened, second.launch_id)
        await lab.report(opened, {"type": "activity", "launch_id": second.launch_id, "doing": "idle", "began": False})
        clock.forward(POLICY.idle_ttl_s - MS)
        await lab.reclaimer.turn()
        assert await wish(lab, opened) == RUNNING
        clock.forward(MS)
        await lab.reclaimer.turn()
        assert await wish(lab, opened) == IDLE

    runs(scenario, backend)


def test_a_turn_in_which_nothing_runs_out_writes_nothing(runs: Runs, backend: ObedientBackend) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = [await idle_session(lab, f"k{number}") for number in range(3)]
        before = await lab.store.run(lambda store: store.db._connection.total_changes)
        for _ in range(5):
            await lab.reclaimer.turn()
        assert await lab.store.run(lambda store: store.db._connection.total_changes) == before
        assert len(opened) == 3

    runs(scenario, backend)


@pytest.mark.parametrize(
    "wrong", [{"doing": "asleep"}, {"doing": None}, {"launch_id": "another's"}, {"doing": 1, "began": "yes"}]
)
def test_a_malformed_report_of_activity_changes_nothing(
    runs: Runs, clock: ManualClock, backend: ObedientBackend, wrong: dict[str, object]
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await idle_session(lab)
        before = await lab.store.run(leases.running, lab.daemon.daemon_id)
        clock.forward(1)
        message = {"type": "activity", "launch_id": opened.launch_id, "doing": "busy", "began": True, **wrong}
        await lab.report(opened, message)
        assert await lab.store.run(leases.running, lab.daemon.daemon_id) == before

    runs(scenario, backend)
