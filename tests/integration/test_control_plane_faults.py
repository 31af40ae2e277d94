"""What the control plane survives: every fake backend by the name of its failure, and clocks that jump."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.config import Policy
from openai4s_provisioner.orchestration.errors import Refused
from openai4s_provisioner.orchestration.models import Phase
from openai4s_provisioner.orchestration.ports import IsolationVerdict, Observed
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.steady_clock import SteadyClock
from openai4s_provisioner.orchestration.store import Store
from openai4s_provisioner.testing.control_lab import OWNER, ControlLab
from openai4s_provisioner.testing.faulty_backends import (
    BackendThatCannotBeAsked,
    BackendThatCannotEvenSend,
    BackendThatForgetsOnce,
    BackendThatHangsForEver,
    BackendThatPurgesWhatEnded,
    BackendWhoseCancelAnswerIsLost,
    BackendWhoseCancelDoesNothingAtFirst,
    ManualClock,
    ObedientBackend,
)

from .conftest import QUICK, Runs

# -- submitting --------------------------------------------------------------------------------------------------------


def test_what_could_not_even_be_sent_is_no_attempt_and_is_sent_once_in_the_end(
    runs_quickly: Runs, clock: ManualClock
) -> None:
    backend = BackendThatCannotEvenSend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        for _ in range(20):
            await lab.turns()
        waiting = (await lab.situation(opened)).allocation
        assert backend.refusals > 10
        assert (waiting.submit_attempts, waiting.submit_unknown_since) == (0, None)
        assert "does not answer" in waiting.waiting
        backend.silent = False
        await lab.turns(2)
        allocation = (await lab.situation(opened)).allocation
        assert (backend.submits, allocation.submit_attempts, allocation.waiting) == (1, 1, "")

    runs_quickly(scenario, backend)


def test_a_stop_before_anything_was_sent_ends_at_once(runs_quickly: Runs, clock: ManualClock) -> None:
    backend = BackendThatCannotEvenSend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        await lab.turns(2)
        await lab.sessions.release_kernel("k1", OWNER)
        await lab.turns(2)
        assert (await lab.situation(opened)).workload.phase is Phase.CANCELLED
        backend.silent = False
        await lab.turns(2)
        assert backend.submits == 0

    runs_quickly(scenario, backend)


# -- observing ---------------------------------------------------------------------------------------------------------


def test_a_backend_that_cannot_be_asked_ends_nothing_for_a_day(runs_quickly: Runs, clock: ManualClock) -> None:
    backend = BackendThatCannotBeAsked(clock, silent=False)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        before = await lab.situation(opened)
        backend.silent = True
        for _ in range(24):
            clock.forward(3600.0)
            await lab.turns()
        assert await lab.situation(opened) == before

    runs_quickly(scenario, backend)


def test_gone_once_is_nothing_and_gone_for_long_is_lost(runs_quickly: Runs, clock: ManualClock) -> None:
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

    runs_quickly(scenario, backend)


def test_a_worker_that_talks_outweighs_a_backend_that_forgot(runs_quickly: Runs, clock: ManualClock) -> None:
    backend = BackendThatForgetsOnce(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        backend.forgets = True
        for _ in range(10):
            clock.forward(3600.0)
            await lab.turns()
        assert (await lab.situation(opened)).allocation.phase is Phase.ACTIVE

    runs_quickly(scenario, backend)


def test_a_worker_that_said_goodbye_makes_gone_final_at_once(runs_quickly: Runs, clock: ManualClock) -> None:
    backend = BackendThatPurgesWhatEnded(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        await lab.sessions.release_kernel("k1", OWNER)
        await lab.turns()
        await lab.report(opened, {"type": "ended", "exit_code": 0, "reason": ""})
        backend.say(Observed.COMPLETED)
        await lab.turns()
        assert (await lab.situation(opened)).workload.phase is Phase.COMPLETED

    runs_quickly(scenario, backend)


def test_a_backend_that_hangs_stalls_only_its_own(runs_quickly: Runs, clock: ManualClock) -> None:
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

    runs_quickly(scenario, hanging, steady, policy=Policy(call_deadline_s=60.0))


def test_a_backend_that_hangs_counts_as_could_not_ask_after_the_deadline(
    runs_quickly: Runs, clock: ManualClock
) -> None:
    backend = BackendThatHangsForEver(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        async with asyncio.timeout(5):
            await lab.turns(3)
        assert (await lab.situation(opened)).allocation.phase is Phase.PENDING
        assert backend.observes == 2

    runs_quickly(scenario, backend)


def test_one_workloads_exception_never_touches_another(runs_quickly: Runs, clock: ManualClock) -> None:
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
        (trouble,) = lab.reconciler.troubles
        assert (trouble.workload_id, trouble.error) == (bad.workload_id, "RuntimeError: boom")

    runs_quickly(scenario, backend)


def test_one_turn_asks_each_backend_once_and_writes_nothing_when_nothing_changed(
    runs_quickly: Runs, clock: ManualClock
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

    runs_quickly(scenario, backend)


# -- cancelling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("faulty", [BackendWhoseCancelDoesNothingAtFirst, BackendWhoseCancelAnswerIsLost])
def test_a_cancel_is_repeated_until_the_end_is_seen(
    runs_quickly: Runs, clock: ManualClock, faulty: type[ObedientBackend]
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

    runs_quickly(scenario, backend)


def test_an_end_that_is_not_observed_is_not_assumed(runs_quickly: Runs, clock: ManualClock) -> None:
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

    runs_quickly(scenario, backend)


# -- isolation ---------------------------------------------------------------------------------------------------------


def test_isolation_that_breaks_after_admission_writes_no_attempt(runs_quickly: Runs, clock: ManualClock) -> None:
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

    runs_quickly(scenario, backend)


def test_unverified_isolation_refuses_and_writes_nothing_at_all(
    tmp_path: Path, runs_quickly: Runs, clock: ManualClock
) -> None:
    backend = ObedientBackend(clock, verdict=IsolationVerdict(False, "apt install bubblewrap"))

    async def scenario(lab: ControlLab) -> None:
        lab.reconciler.start()
        with pytest.raises(Refused, match="apt install bubblewrap") as caught:
            await lab.open("k1")
        assert caught.value.reason is Reason.ISOLATION_UNVERIFIED
        await lab.turns()
        await lab.reconciler.adopt()
        assert await asyncio.to_thread(os.listdir, tmp_path) == ["work"]

    runs_quickly(scenario, backend)


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


def test_a_clock_that_was_set_back_between_two_processes_holds_up_no_end(
    runs_quickly: Runs, clock: ManualClock
) -> None:
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

    runs_quickly(scenario, backend)


def test_a_suspicion_from_the_future_is_begun_anew(runs_quickly: Runs, clock: ManualClock) -> None:
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

    runs_quickly(scenario, backend)


def test_a_preparation_that_took_too_long_leaves_no_file_behind_when_it_ends_after_all(
    runs_quickly: Runs, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network folder that hangs for minutes: what it writes then holds a credential."""
    monkeypatch.setattr("openai4s_provisioner.orchestration.executor._ISOLATION_AND_FILES_DEADLINE_S", 0.2)
    backend, answers = ObedientBackend(clock), threading.Event()

    async def scenario(lab: ControlLab) -> None:
        def hangs() -> Path:
            answers.wait(20.0)
            return lab.bundle

        lab.preparer._bundle_path = hangs
        opened = await lab.open("k1")
        await lab.turns(3)
        assert (await lab.situation(opened)).workload.reason is Reason.BOOTSTRAP_FAILED
        answers.set()
        written = lab.preparer.attempt_dir(opened.allocation_id) / "rank-0.json"
        while not written.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await lab.turns_until(lambda: not written.parent.exists())
        assert await lab.store.run(Store.debris, lab.daemon.daemon_id) == []
        assert backend.submits == 0

    try:
        runs_quickly(scenario, backend)
    finally:
        answers.set()
