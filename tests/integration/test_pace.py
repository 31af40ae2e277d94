"""How often the control loop looks: quick while something is awaited, slow when steady, patient with silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from openai4s_provisioner.orchestration.config import Policy
from openai4s_provisioner.orchestration.models import LinkState
from openai4s_provisioner.orchestration.pace import Pace
from openai4s_provisioner.orchestration.ports import AllocationRequest, Observed, SubmitResult
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.testing.control_lab import OWNER, ControlLab, in_lab
from openai4s_provisioner.testing.faulty_backends import BackendThatCannotBeAsked, ManualClock, ObedientBackend

POLICY = Policy(period_s=0.05, steady_period_s=30.0, call_deadline_s=2.0)


class BackendWithNoFreeMachine(ObedientBackend):
    """Whatever it is given waits."""

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        answer = await super().submit(request)
        self.say(Observed.PENDING)
        return answer


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for is told to nobody
            await asyncio.sleep(0.01)


def test_it_is_quick_while_something_is_awaited_and_slow_while_all_is_steady(
    tmp_path: Path, clock: ManualClock
) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        quick, slow = POLICY.period_s, POLICY.steady_period_s
        assert lab.reconciler.period_s == slow, "nothing is there"
        opened = await lab.open("k1")
        await lab.turns()
        assert lab.reconciler.period_s == quick, "it is being started"
        await lab.turns()
        await lab.dial(opened)
        await lab.answer_workspace(opened)
        await lab.start_kernel(opened)
        await lab.turns(2)
        assert lab.reconciler.period_s == slow
        await lab.link(opened, LinkState.RECONNECTING)
        await lab.turns()
        assert lab.reconciler.period_s == quick, "nobody would tell"
        await lab.link(opened, LinkState.CONNECTED)
        await lab.turns()
        assert lab.reconciler.period_s == slow
        await lab.sessions.request_stop(opened.workload_id, Reason.USER_CANCELLED, OWNER)
        await lab.turns()
        assert lab.reconciler.period_s == quick, "it is ending"
        clock.forward(60)
        await lab.turns(4)
        assert lab.reconciler.period_s == slow, "it is over"

    in_lab(tmp_path, scenario, backend, clock=clock, policy=POLICY)


def test_one_that_waits_is_looked_at_ever_less_often_and_its_cost_does_not_grow_with_others(
    tmp_path: Path, clock: ManualClock
) -> None:
    backend = BackendWithNoFreeMachine(clock)
    policy = Policy(period_s=5.0, steady_period_s=30.0)

    async def scenario(lab: ControlLab) -> None:
        for number in range(3):
            await lab.open(f"k{number}")
        await lab.turns()
        backend.observes = 0
        pauses: list[float] = []
        while sum(pauses) < 3600:
            await lab.reconciler.turn(patient=True)
            pauses.append(lab.reconciler.period_s)
            clock.forward(pauses[-1])
        assert pauses[0] == 5.0
        assert pauses == sorted(pauses)
        assert pauses[-1] == 30.0
        assert backend.observes == len(pauses) <= 200, "three of them cost what one does"

    in_lab(tmp_path, scenario, backend, clock=clock, policy=policy)


def test_a_start_is_followed_quickly_even_after_a_steady_time(tmp_path: Path, clock: ManualClock) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        await lab.active_session("k1")
        lab.reconciler.start()
        await until(lambda: lab.reconciler.pulse.turns >= 1)
        turns = lab.reconciler.pulse.turns
        await lab.open("k2")
        await until(lambda: lab.reconciler.pulse.turns >= turns + 3)  # 30 s apart, had the pace not changed

    in_lab(tmp_path, scenario, backend, clock=clock, policy=POLICY)


def test_a_backend_that_does_not_answer_is_asked_ever_less_often_and_a_poke_asks_at_once(
    tmp_path: Path, clock: ManualClock
) -> None:
    backend = BackendThatCannotBeAsked(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        await lab.turns()
        for _ in range(20):
            await lab.reconciler.turn(patient=True)
        assert backend.observes == 1, "it was asked once, and is left alone"
        assert lab.reconciler.pulse.unanswered == 1
        await lab.reconciler.turn([opened.workload_id])
        assert backend.observes == 2

    in_lab(tmp_path, scenario, backend, clock=clock, policy=Policy(period_s=60.0))


def test_the_pause_towards_a_silent_backend_grows_and_ends_with_its_answer() -> None:
    pace = Pace(Policy(period_s=5.0))
    now = 0.0
    pauses = []
    for _ in range(6):
        pace.did_not_answer("b", now)
        pauses.append(next(s for s in range(200) if pace.may_ask("b", now + s)))
        now += pauses[-1]
    assert pauses == [5, 10, 20, 40, 60, 60]
    pace.answered("b")
    assert pace.may_ask("b", now)


def test_counters_and_the_last_error_can_be_read(tmp_path: Path, clock: ManualClock) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        await lab.open("k1")
        await lab.turns(2)
        pulse = lab.reconciler.pulse
        assert (pulse.turns, pulse.steps, pulse.actions, pulse.failed_steps) == (2, 2, 2, 0)

        async def breaks(situation: object, action: object) -> None:
            raise RuntimeError("boom")

        lab.executor.perform = breaks  # type: ignore[method-assign]
        await lab.open("k2")
        await lab.turns()
        pulse = lab.reconciler.pulse
        assert (pulse.failed_steps, pulse.last_error, pulse.last_error_at) == (1, "RuntimeError: boom", clock())

    in_lab(tmp_path, scenario, backend, clock=clock)
