"""Several processes share a state folder: who drives what, who adopts it, and who lets it go."""

from __future__ import annotations

import asyncio
import os

import pytest

from openai4s_provisioner.orchestration.config import Policy
from openai4s_provisioner.orchestration.daemons import SILENCE_S, Daemon
from openai4s_provisioner.orchestration.models import Allocation, Phase
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.session import OpenedSession
from openai4s_provisioner.orchestration.store import Ending, Store, StoreThread
from openai4s_provisioner.testing.control_lab import OWNER, ControlLab
from openai4s_provisioner.testing.faulty_backends import (
    BackendWhoseSubmitHangs,
    ManualClock,
    ObedientBackend,
)

from .conftest import Runs


def test_after_a_crash_the_sessions_of_the_dead_process_are_ended_and_cleared(
    runs_quickly: Runs, clock: ManualClock
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

    runs_quickly(scenario, backend)


def test_a_crash_between_the_call_and_its_answer_is_looked_up_by_the_next_process(
    runs_quickly: Runs, clock: ManualClock
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

    runs_quickly(scenario, backend, policy=Policy(call_deadline_s=60.0))


def test_a_living_process_keeps_its_workloads(runs_quickly: Runs, clock: ManualClock) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        store = StoreThread(lab.state_dir)
        neighbour = Daemon(store, clock, wall=clock)
        clock.forward(SILENCE_S * 10)  # silent, but its lock is held
        assert await neighbour.adopt() == []
        assert not neighbour.is_registered
        assert await lab.store.run(Store.driver_of, opened.workload_id) == lab.daemon.daemon_id
        store.close()

    runs_quickly(scenario, backend)


def test_a_free_lock_of_another_boot_is_believed_only_after_silence(runs_quickly: Runs, clock: ManualClock) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        lab.daemon.drop_lock()
        store = StoreThread(lab.state_dir)
        elsewhere = Daemon(store, clock, "another machine", clock)
        clock.forward(SILENCE_S - 1)
        assert await elsewhere.adopt() == []
        clock.forward(1)
        assert await elsewhere.adopt() == [opened.workload_id]
        await elsewhere.retire()
        store.close()
        # the former owner drives it no longer
        assert await lab.store.run(Store.situations, lab.daemon.daemon_id) == []

    runs_quickly(scenario, backend)


def test_only_one_of_two_processes_adopts(runs_quickly: Runs, clock: ManualClock) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        lab.daemon.drop_lock()
        stores = [StoreThread(lab.state_dir) for _ in range(2)]
        heirs = [Daemon(store, clock, wall=clock) for store in stores]
        adopted = await asyncio.gather(*(heir.adopt() for heir in heirs))
        assert sorted(adopted) == [[], [opened.workload_id]]
        for heir, store in zip(heirs, stores, strict=True):
            await heir.retire()
            store.close()

    runs_quickly(scenario, backend)


# -- an owner that was away ---------------------------------------------------------------------------------------


async def taken_over(lab: ControlLab, opened: OpenedSession, clock: ManualClock) -> None:
    """The lab's process is suspended; on another host, where its lock says nothing, it is taken for dead."""
    lab.daemon.drop_lock()
    store = StoreThread(lab.state_dir)
    elsewhere = Daemon(store, clock, "another machine", clock)
    clock.forward(SILENCE_S)
    assert await elsewhere.adopt() == [opened.workload_id]
    await elsewhere.retire()
    store.close()
    lab.daemon._lock = os.open(os.devnull, os.O_RDONLY)  # it never knew that its lock said nothing


def test_an_owner_that_was_away_drives_nothing_that_was_adopted_and_lets_it_go(
    runs_quickly: Runs, clock: ManualClock
) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        await lab.turns()
        await taken_over(lab, opened, clock)
        await lab.sessions.request_stop(opened.workload_id, Reason.SERVER_GONE, "the new owner")
        await lab.turns(3)
        assert (backend.submits, backend.cancels) == (1, 0), "what is to be done is for the new owner"
        assert lab.channel.forgotten == [opened.allocation_id]
        assert (await lab.situation(opened)).allocation.phase is Phase.ACTIVE
        # Whoever follows the session here hears what the new owner makes of it.
        following = asyncio.ensure_future(lab.sessions.wait_over(opened.workload_id))
        await asyncio.sleep(0)
        ended = Ending(Phase.CANCELLED, Reason.SERVER_GONE)
        await lab.store.run(Store.end, opened.allocation_id, ended, clock())
        await lab.reconciler._ownership.keep()
        assert (await asyncio.wait_for(following, 5)).reason is Reason.SERVER_GONE

    runs_quickly(scenario, backend)


def test_an_owner_that_was_away_and_whom_nobody_missed_goes_on(runs_quickly: Runs, clock: ManualClock) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        await lab.turns()
        clock.forward(SILENCE_S * 10)
        assert not lab.daemon.is_current
        await lab.turns()
        assert lab.daemon.is_current, "it has said that it lives before it did anything"
        assert lab.channel.forgotten == []
        await lab.sessions.request_stop(opened.workload_id, Reason.USER_CANCELLED, OWNER)
        await lab.turns(5)
        clock.forward(lab.policy.drain_s)
        await lab.turns(2)
        assert (await lab.situation(opened)).allocation.phase.is_terminal

    runs_quickly(scenario, backend)


def test_nothing_is_sent_by_an_owner_that_fell_asleep_between_the_commit_and_the_call(
    runs_quickly: Runs, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = ObedientBackend(clock)
    begin_submit = Store.begin_submit

    def and_sleep(store: Store, allocation: Allocation, daemon_id: str, now: float) -> bool:
        begun = begin_submit(store, allocation, daemon_id, now)
        clock.forward(SILENCE_S)
        return begun

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        monkeypatch.setattr(Store, "begin_submit", and_sleep)
        await lab.turns()
        assert backend.submits == 0
        assert (await lab.situation(opened)).allocation.submit_unknown_since is not None, "it is looked up first"
        monkeypatch.setattr(Store, "begin_submit", begin_submit)
        await lab.turns_until(lambda: backend.submits == 1)
        assert len(backend.running) == 1

    runs_quickly(scenario, backend)


def test_the_beat_of_a_machine_that_slept_shows_when_it_woke(runs_quickly: Runs, clock: ManualClock) -> None:
    """Its steady clock stood still meanwhile: by that one it would look to the others as if it slept on."""

    async def scenario(lab: ControlLab) -> None:
        await lab.active_session("k1")
        asleep = clock()
        lab.daemon._clock = lambda: asleep
        clock.forward(3600.0)
        await lab.daemon.beat()
        lab.daemon.drop_lock()  # on another host it says nothing
        store = StoreThread(lab.state_dir)
        assert await Daemon(store, clock, "another machine", clock).adopt() == []
        store.close()

    runs_quickly(scenario, ObedientBackend(clock))
