"""Submissions whose fate is unknown, that land twice, or after everybody has given them up (INV-8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from openai4s_provisioner.orchestration.models import ExternalHandle, Phase
from openai4s_provisioner.orchestration.ports import Observed
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.store import Store
from openai4s_provisioner.testing.control_lab import OWNER, ControlLab
from openai4s_provisioner.testing.faulty_backends import (
    BackendThatAnswersGarbage,
    BackendThatLosesEverySubmission,
    BackendThatLosesTheFirstSubmission,
    BackendThatNamesOneLandingOnly,
    BackendWhoseAnswerIsLost,
    BackendWhoseLookupFails,
    BackendWhoseSubmitHangs,
    BackendWhoseSubmitLandsLate,
    BackendWhoseSubmitLandsTwice,
    ManualClock,
    ObedientBackend,
)

from .conftest import QUICK, Runs


class BackendThatCountsLookUps(BackendWhoseSubmitLandsTwice):
    look_ups = 0

    async def find_all_by_token(self, token: str) -> list[ExternalHandle]:
        self.look_ups += 1
        return list(await super().find_all_by_token(token))


# -- submissions whose fate is unknown (INV-8) -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "faulty",
    [BackendWhoseSubmitLandsLate, BackendWhoseAnswerIsLost, BackendThatAnswersGarbage, BackendWhoseSubmitHangs],
)
def test_a_submission_that_landed_without_an_answer_is_found_and_never_sent_again(
    runs_quickly: Runs, clock: ManualClock, faulty: type[ObedientBackend]
) -> None:
    backend = faulty(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        phases = []
        for _ in range(10):
            await lab.reconciler.turn()
            phases.append((await lab.situation(opened)).allocation.phase)
            clock.forward(5.0)
        assert phases[-1] is Phase.GRANTED
        assert (backend.submits, len(backend.allocations)) == (1, 1)

    runs_quickly(scenario, backend)


def test_a_submission_that_never_landed_is_sent_again_with_the_same_token_after_the_settle_window(
    runs_quickly: Runs, clock: ManualClock
) -> None:
    backend = BackendThatLosesTheFirstSubmission(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        token = (await lab.situation(opened)).allocation.token
        await lab.turns()
        clock.forward(QUICK.settle_window_s - 1)
        await lab.turns()
        assert backend.submits == 1
        clock.forward(1)
        await lab.turns()
        assert backend.submits == 2
        assert [each.token for each in backend.allocations] == [token]

    runs_quickly(scenario, backend)


def test_a_submission_that_never_lands_fails_after_a_few_attempts(runs_quickly: Runs, clock: ManualClock) -> None:
    backend = BackendThatLosesEverySubmission(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        for _ in range(60):
            await lab.reconciler.turn()
            clock.forward(5.0)
        workload = (await lab.situation(opened)).workload
        assert (workload.phase, workload.reason) == (Phase.FAILED, Reason.BACKEND_SUBMISSION_UNKNOWN)
        assert backend.submits == QUICK.max_submits

    runs_quickly(scenario, backend)


def test_a_lookup_that_fails_is_unknown_and_never_no(runs_quickly: Runs, clock: ManualClock) -> None:
    backend = BackendWhoseLookupFails(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        for _ in range(100):
            await lab.reconciler.turn()
            clock.forward(60.0)
        assert (await lab.situation(opened)).allocation.phase is Phase.SUBMITTING
        assert backend.submits == 1
        (trouble,) = lab.reconciler.troubles
        assert (trouble.workload_id, trouble.failures > 1) == (opened.workload_id, True)
        assert "the directory is down" in trouble.error
        backend.lookup_works = True
        await lab.turns(2)
        assert (await lab.situation(opened)).allocation.phase is Phase.GRANTED
        assert lab.reconciler.troubles == ()

    runs_quickly(scenario, backend)


@pytest.mark.parametrize("faulty", [BackendWhoseSubmitLandsLate, BackendThatLosesEverySubmission])
def test_a_stop_while_the_fate_is_unknown_leaks_nothing(
    runs_quickly: Runs, clock: ManualClock, faulty: type[ObedientBackend]
) -> None:
    backend = faulty(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        await lab.turns()
        await lab.sessions.request_stop(opened.workload_id, Reason.USER_CANCELLED, OWNER)
        for _ in range(20):
            await lab.reconciler.turn()
            clock.forward(5.0)
        workload = (await lab.situation(opened)).workload
        assert (workload.phase, workload.reason) == (Phase.CANCELLED, Reason.USER_CANCELLED)
        assert backend.submits == 1
        assert backend.running == []

    runs_quickly(scenario, backend)


# -- submissions that land twice, or after everybody has given them up -------------------------------------------


@pytest.mark.parametrize("delay_s", [61.0, 100.0, 400.0], ids=["just after the settle window", "later", "much later"])
@pytest.mark.parametrize("faulty", [BackendWhoseSubmitLandsTwice, BackendThatNamesOneLandingOnly])
def test_a_submission_that_landed_twice_is_cancelled_but_for_one(
    runs_quickly: Runs, clock: ManualClock, faulty: Callable[..., ObedientBackend], delay_s: float
) -> None:
    backend = faulty(clock, delay_s=delay_s)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        for _ in range(20):
            await lab.turns()
            clock.forward(5.0)
        await lab.dial(opened)
        await lab.answer_workspace(opened)
        await lab.start_kernel(opened)
        for _ in range(100):
            await lab.turns()
            clock.forward(5.0)
        assert backend.submits == 2
        now = await lab.situation(opened)
        assert now.allocation.phase is Phase.ACTIVE, "whenever it lands, the one that is used stays"
        assert [each.handle for each in backend.running] == [now.allocation.handle]
        events = [each for each in await lab.store.run(Store.events, opened.workload_id) if each.reason]
        assert [(each.kind, each.reason) for each in events] == [("stray_cancelled", Reason.DUPLICATE_SUBMISSION)]
        await lab.sessions.request_stop(opened.workload_id, Reason.USER_CANCELLED, OWNER)
        await lab.report(opened, {"type": "ended", "exit_code": 0, "reason": "USER_CANCELLED"})
        backend.say(Observed.COMPLETED)
        await lab.turns_until(lambda: not lab.executor._strays and not lab.reconciler._duplicates_asked, most=500)

    runs_quickly(scenario, backend)


def test_a_second_landing_is_looked_for_ever_less_often(runs_quickly: Runs, clock: ManualClock) -> None:
    backend = BackendThatCountsLookUps(clock, delay_s=100.0)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        for _ in range(20):
            await lab.turns()
            clock.forward(5.0)
        await lab.dial(opened)
        await lab.answer_workspace(opened)
        await lab.start_kernel(opened)
        counts = []
        for _ in range(6):
            backend.look_ups = 0
            for _ in range(120):
                await lab.turns()
                clock.forward(30.0)
            counts.append(backend.look_ups)
        assert counts[0] <= 30, "in the first hour"
        assert all(1 <= count <= 8 for count in counts[1:]), "and it is never given up"

    runs_quickly(scenario, backend)


def test_a_submission_that_lands_after_its_session_ended_is_cancelled(runs_quickly: Runs, clock: ManualClock) -> None:
    backend = BackendWhoseSubmitLandsTwice(clock, delay_s=QUICK.settle_window_s * 3)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        await lab.turns()
        await lab.sessions.request_stop(opened.workload_id, Reason.USER_CANCELLED, OWNER)
        clock.forward(QUICK.settle_window_s)
        await lab.turns(2)
        assert (await lab.situation(opened)).workload.phase is Phase.CANCELLED
        for _ in range(200):
            await lab.turns()
            clock.forward(5.0)
        assert backend.submits == 1
        assert backend.running == []
        assert await lab.store.run(Store.debris, lab.daemon.daemon_id) == []

    runs_quickly(scenario, backend)
