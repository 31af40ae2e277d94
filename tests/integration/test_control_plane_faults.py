"""What the control plane survives: every fake backend by the name of its failure, crashes, and several processes."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.config import Policy
from openai4s_provisioner.orchestration.daemons import SILENCE_S, Daemon
from openai4s_provisioner.orchestration.errors import Refused
from openai4s_provisioner.orchestration.models import Phase
from openai4s_provisioner.orchestration.ports import IsolationVerdict, Observed
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.steady_clock import SteadyClock
from openai4s_provisioner.orchestration.store import Store, StoreThread
from openai4s_provisioner.testing.control_lab import OWNER, ControlLab, in_lab
from openai4s_provisioner.testing.faulty_backends import (
    BackendThatAnswersGarbage,
    BackendThatCannotBeAsked,
    BackendThatForgetsOnce,
    BackendThatHangsForEver,
    BackendThatLosesEverySubmission,
    BackendThatLosesTheFirstSubmission,
    BackendThatPurgesWhatEnded,
    BackendWhoseAnswerIsLost,
    BackendWhoseCancelAnswerIsLost,
    BackendWhoseCancelDoesNothingAtFirst,
    BackendWhoseLookupFails,
    BackendWhoseSubmitHangs,
    BackendWhoseSubmitLandsLate,
    BackendWhoseSubmitLandsTwice,
    ManualClock,
    ObedientBackend,
)

# A backend's failure backs its workload off in real time; tests look past that.
QUICK = Policy(call_deadline_s=0.2)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai4s_provisioner.orchestration.reconciler._FIRST_PAUSE_S", 0.0)


# -- submissions whose fate is unknown (INV-8) -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "faulty",
    [BackendWhoseSubmitLandsLate, BackendWhoseAnswerIsLost, BackendThatAnswersGarbage, BackendWhoseSubmitHangs],
)
def test_a_submission_that_landed_without_an_answer_is_found_and_never_sent_again(
    tmp_path: Path, clock: ManualClock, faulty: type[ObedientBackend]
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

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


def test_a_submission_that_never_landed_is_sent_again_with_the_same_token_after_the_settle_window(
    tmp_path: Path, clock: ManualClock
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

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


def test_a_submission_that_never_lands_fails_after_a_few_attempts(tmp_path: Path, clock: ManualClock) -> None:
    backend = BackendThatLosesEverySubmission(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        for _ in range(60):
            await lab.reconciler.turn()
            clock.forward(5.0)
        workload = (await lab.situation(opened)).workload
        assert (workload.phase, workload.reason) == (Phase.FAILED, Reason.BACKEND_SUBMISSION_UNKNOWN)
        assert backend.submits == QUICK.max_submits

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


def test_a_lookup_that_fails_is_unknown_and_never_no(tmp_path: Path, clock: ManualClock) -> None:
    backend = BackendWhoseLookupFails(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        for _ in range(100):
            await lab.reconciler.turn()
            clock.forward(60.0)
        assert (await lab.situation(opened)).allocation.phase is Phase.SUBMITTING
        assert backend.submits == 1
        trouble = lab.reconciler.trouble(opened.workload_id)
        assert trouble is not None
        assert "the directory is down" in trouble.error
        backend.lookup_works = True
        await lab.turns(2)
        assert (await lab.situation(opened)).allocation.phase is Phase.GRANTED
        assert lab.reconciler.trouble(opened.workload_id) is None

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


@pytest.mark.parametrize("faulty", [BackendWhoseSubmitLandsLate, BackendThatLosesEverySubmission])
def test_a_stop_while_the_fate_is_unknown_leaks_nothing(
    tmp_path: Path, clock: ManualClock, faulty: type[ObedientBackend]
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

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


# -- observing ---------------------------------------------------------------------------------------------------------


def test_a_backend_that_cannot_be_asked_ends_nothing_for_a_day(tmp_path: Path, clock: ManualClock) -> None:
    backend = BackendThatCannotBeAsked(clock, silent=False)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        before = await lab.situation(opened)
        backend.silent = True
        for _ in range(24):
            clock.forward(3600.0)
            await lab.turns()
        assert await lab.situation(opened) == before

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


def test_gone_once_is_nothing_and_gone_for_long_is_lost(tmp_path: Path, clock: ManualClock) -> None:
    backend = BackendThatForgetsOnce(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        await lab.turns(2)
        backend.forgets = True
        await lab.turns()
        clock.forward(QUICK.gone_debounce_s - 1)
        await lab.turns()
        backend.forgets = False
        await lab.turns()
        assert (await lab.situation(opened)).allocation.gone_since is None
        backend.forgets = True
        await lab.turns()
        clock.forward(QUICK.gone_debounce_s)
        await lab.turns()
        assert (await lab.situation(opened)).workload.phase is Phase.LOST

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


def test_a_worker_that_talks_outweighs_a_backend_that_forgot(tmp_path: Path, clock: ManualClock) -> None:
    backend = BackendThatForgetsOnce(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        backend.forgets = True
        for _ in range(10):
            clock.forward(3600.0)
            await lab.turns()
        assert (await lab.situation(opened)).allocation.phase is Phase.ACTIVE

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


def test_a_worker_that_said_goodbye_makes_gone_final_at_once(tmp_path: Path, clock: ManualClock) -> None:
    backend = BackendThatPurgesWhatEnded(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        await lab.sessions.release_kernel("k1", OWNER)
        await lab.turns()
        await lab.report(opened, {"type": "ended", "exit_code": 0, "reason": ""})
        backend.say(Observed.COMPLETED)
        await lab.turns()
        assert (await lab.situation(opened)).workload.phase is Phase.COMPLETED

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


def test_a_backend_that_hangs_stalls_only_its_own(tmp_path: Path, clock: ManualClock) -> None:
    hanging = BackendThatHangsForEver(clock, name="hanging")
    steady = ObedientBackend(clock, name="steady")

    async def scenario(lab: ControlLab) -> None:
        await lab.open("k1", "hanging")
        await lab.reconciler.turn()
        stuck = asyncio.ensure_future(lab.reconciler.turn())
        await asyncio.sleep(0)
        begun = time.monotonic()
        opened = await lab.open("k2", "steady")
        await lab.reconciler.turn([opened.workload_id])
        await lab.reconciler.turn([opened.workload_id])
        assert (await lab.situation(opened)).allocation.phase is Phase.GRANTED
        assert time.monotonic() - begun < 5.0
        assert not stuck.done()
        stuck.cancel()

    in_lab(tmp_path, scenario, hanging, steady, clock=clock, policy=Policy(call_deadline_s=60.0))


def test_a_backend_that_hangs_counts_as_could_not_ask_after_the_deadline(tmp_path: Path, clock: ManualClock) -> None:
    backend = BackendThatHangsForEver(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        async with asyncio.timeout(5):
            await lab.turns(3)
        assert (await lab.situation(opened)).allocation.phase is Phase.PENDING
        assert backend.observes == 2

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


def test_one_workloads_exception_never_touches_another(tmp_path: Path, clock: ManualClock) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        bad, good = await lab.open("k1"), await lab.open("k2")
        prepare = lab.executor.perform

        async def breaks(situation: object, action: object) -> None:
            if situation.workload.workload_id == bad.workload_id:  # type: ignore[attr-defined]
                raise RuntimeError("boom")
            await prepare(situation, action)  # type: ignore[arg-type]

        lab.executor.perform = breaks  # type: ignore[method-assign]
        await lab.turns(2)
        assert (await lab.situation(good)).allocation.phase is Phase.GRANTED
        trouble = lab.reconciler.trouble(bad.workload_id)
        assert trouble is not None
        assert trouble.error == "RuntimeError: boom"

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


def test_one_turn_asks_each_backend_once_and_writes_nothing_when_nothing_changed(
    tmp_path: Path, clock: ManualClock
) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        for number in range(5):
            await lab.active_session(f"k{number}")
        observed = backend.observes
        before = await lab.store.run(lambda store: store.db._connection.total_changes)
        await lab.turns()
        assert backend.observes == observed + 1
        assert await lab.store.run(lambda store: store.db._connection.total_changes) == before

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


# -- cancelling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("faulty", [BackendWhoseCancelDoesNothingAtFirst, BackendWhoseCancelAnswerIsLost])
def test_a_cancel_is_repeated_until_the_end_is_seen(
    tmp_path: Path, clock: ManualClock, faulty: type[ObedientBackend]
) -> None:
    backend = faulty(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        await lab.sessions.release_kernel("k1", OWNER)
        for _ in range(30):
            await lab.reconciler.turn()
            clock.forward(5.0)
        assert (await lab.situation(opened)).workload.phase is Phase.CANCELLED
        assert backend.running == []

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


def test_an_end_that_is_not_observed_is_not_assumed(tmp_path: Path, clock: ManualClock) -> None:
    backend = BackendThatCannotBeAsked(clock, silent=False)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        backend.silent = True
        await lab.sessions.release_kernel("k1", OWNER)
        for _ in range(30):
            await lab.reconciler.turn()
            clock.forward(60.0)
        assert (await lab.situation(opened)).allocation.phase is Phase.RELEASING
        backend.silent = False
        for _ in range(3):
            await lab.reconciler.turn()
            clock.forward(60.0)
        assert (await lab.situation(opened)).workload.phase is Phase.CANCELLED

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


# -- isolation, crashes, several processes -----------------------------------------------------------------------------


def test_isolation_that_breaks_after_admission_writes_no_attempt(tmp_path: Path, clock: ManualClock) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        backend.verdict = IsolationVerdict(False, "bubblewrap is gone: apt install bubblewrap")
        await lab.turns()
        workload = (await lab.situation(opened)).workload
        assert (workload.phase, workload.reason) == (Phase.FAILED, Reason.ISOLATION_UNVERIFIED)
        assert "apt install bubblewrap" in workload.reason_detail
        assert not lab.exchange_dir.exists()
        assert list(lab.workspace.iterdir()) == []

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


def test_unverified_isolation_refuses_and_writes_nothing_at_all(tmp_path: Path, clock: ManualClock) -> None:
    backend = ObedientBackend(clock, verdict=IsolationVerdict(False, "apt install bubblewrap"))

    async def scenario(lab: ControlLab) -> None:
        lab.reconciler.start()
        with pytest.raises(Refused, match="apt install bubblewrap") as caught:
            await lab.open("k1")
        assert caught.value.reason is Reason.ISOLATION_UNVERIFIED
        await lab.turns()
        await lab.reconciler.adopt()
        assert await asyncio.to_thread(os.listdir, tmp_path) == ["work"]

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


def test_after_a_crash_the_sessions_of_the_dead_process_are_ended_and_cleared(
    tmp_path: Path, clock: ManualClock
) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        queued = await lab.open("k2")
        await lab.restart()
        for _ in range(5):
            await lab.reconciler.turn()
            clock.forward(5.0)
        for each, phase in ((opened, Phase.CANCELLED), (queued, Phase.CANCELLED)):
            workload = (await lab.situation(each)).workload
            assert (workload.phase, workload.reason) == (phase, Reason.SERVER_GONE)
        assert backend.running == []
        assert backend.submits == 1
        assert list((lab.exchange_dir / "attempts").iterdir()) == []
        assert list(lab.workspace.iterdir()) == []

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


def test_a_crash_between_the_call_and_its_answer_is_looked_up_by_the_next_process(
    tmp_path: Path, clock: ManualClock
) -> None:
    backend = BackendWhoseSubmitHangs(clock)

    async def scenario(lab: ControlLab) -> None:
        await lab.open("k1")
        turn = asyncio.ensure_future(lab.reconciler.turn())
        while not backend.allocations:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        turn.cancel()
        await lab.restart()
        for _ in range(5):
            await lab.reconciler.turn()
            clock.forward(5.0)
        assert backend.submits == 1
        assert backend.running == []

    in_lab(tmp_path, scenario, backend, clock=clock, policy=Policy(call_deadline_s=60.0))


def test_a_living_process_keeps_its_workloads(tmp_path: Path, clock: ManualClock) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        store = StoreThread(lab.state_dir)
        neighbour = Daemon(store, clock)
        clock.forward(SILENCE_S * 10)  # silent, but its lock is held
        assert await neighbour.adopt() == []
        assert not neighbour.is_registered
        assert await lab.store.run(Store.driver_of, opened.workload_id) == lab.daemon.daemon_id
        store.close()

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


def test_a_free_lock_of_another_boot_is_believed_only_after_silence(tmp_path: Path, clock: ManualClock) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        lab.daemon.drop_lock()
        store = StoreThread(lab.state_dir)
        elsewhere = Daemon(store, clock, boot_id="another machine")
        clock.forward(SILENCE_S - 1)
        assert await elsewhere.adopt() == []
        clock.forward(1)
        assert await elsewhere.adopt() == [opened.workload_id]
        await elsewhere.retire()
        store.close()
        # the former owner drives it no longer
        assert await lab.store.run(Store.situations, lab.daemon.daemon_id) == []

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


def test_only_one_of_two_processes_adopts(tmp_path: Path, clock: ManualClock) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        lab.daemon.drop_lock()
        stores = [StoreThread(lab.state_dir) for _ in range(2)]
        heirs = [Daemon(store, clock) for store in stores]
        adopted = await asyncio.gather(*(heir.adopt() for heir in heirs))
        assert sorted(adopted) == [[], [opened.workload_id]]
        for heir, store in zip(heirs, stores, strict=True):
            await heir.retire()
            store.close()

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


# -- submissions that land twice, or after everybody has given them up -------------------------------------------


def test_a_submission_that_landed_twice_is_cancelled_but_for_one(tmp_path: Path, clock: ManualClock) -> None:
    backend = BackendWhoseSubmitLandsTwice(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        for _ in range(60):
            await lab.turns()
            clock.forward(5.0)
        assert backend.submits == 2
        now = await lab.situation(opened)
        assert now.allocation.phase is Phase.GRANTED
        assert [each.handle for each in backend.running] == [now.allocation.handle]
        events = [each for each in await lab.store.run(Store.events, opened.workload_id) if each.reason]
        assert [(each.kind, each.reason) for each in events] == [("stray_cancelled", Reason.DUPLICATE_SUBMISSION)]

    in_lab(tmp_path, scenario, backend, clock=clock, policy=replace(QUICK, registration_timeout_s=1e6))


def test_a_submission_that_lands_after_its_session_ended_is_cancelled(tmp_path: Path, clock: ManualClock) -> None:
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

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


# -- clocks that jump --------------------------------------------------------------------------------------------------


def test_a_clock_that_is_set_forward_ends_nothing(tmp_path: Path, clock: ManualClock) -> None:
    """The system's clock may jump; ours goes on as if nothing had happened."""
    system, running = [1_000_000.0], [50.0]
    steady = SteadyClock(lambda: system[0], lambda: running[0])
    before = steady()
    system[0] += 86_400.0
    running[0] += 1.0
    assert steady() - before == 1.0
    system[0] -= 2 * 86_400.0
    assert steady() - before == 1.0


def test_a_clock_that_was_set_back_between_two_processes_holds_up_no_end(tmp_path: Path, clock: ManualClock) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        await lab.sessions.release_kernel("k1", OWNER)
        await lab.turns()
        clock.forward(-86_400.0)
        await lab.restart()
        await lab.turns(3)
        assert (await lab.situation(opened)).workload.phase is Phase.CANCELLED
        assert backend.running == []

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)


def test_a_suspicion_from_the_future_is_begun_anew(tmp_path: Path, clock: ManualClock) -> None:
    backend = BackendThatForgetsOnce(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        await lab.turns(2)
        backend.forgets = True
        await lab.turns()
        clock.forward(-86_400.0)
        await lab.turns()
        assert (await lab.situation(opened)).allocation.gone_since == clock()
        clock.forward(QUICK.gone_debounce_s)
        await lab.turns()
        assert (await lab.situation(opened)).workload.phase is Phase.LOST

    in_lab(tmp_path, scenario, backend, clock=clock, policy=QUICK)
