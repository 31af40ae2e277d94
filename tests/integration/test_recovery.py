"""A lost allocation is followed by a new epoch while somebody is connected; everything else that ends is final."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.errors import IllegalTransition
from openai4s_provisioner.orchestration.models import LinkState, Phase
from openai4s_provisioner.orchestration.ports import Observation, Observed
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.recovery import MAX_RECOVERIES, OUTCOMES, Outcome, pause_s
from openai4s_provisioner.orchestration.session import OpenedSession
from openai4s_provisioner.orchestration.store import Store
from openai4s_provisioner.testing.control_lab import OWNER, ControlLab, in_lab
from openai4s_provisioner.testing.faulty_backends import (
    BackendThatForgetsOnce,
    BackendWhoseCancelDoesNothingAtFirst,
    ManualClock,
    ObedientBackend,
)

pytestmark = pytest.mark.usefixtures("no_pauses")
RECOVERED = [reason for reason, outcome in OUTCOMES.items() if outcome is Outcome.RECOVER]


async def used_session(lab: ControlLab) -> OpenedSession:
    lab.clients_connected = True
    return await lab.active_session("k1")


async def present(lab: ControlLab, opened: OpenedSession) -> OpenedSession:
    """The same session, with the attempt it is in now."""
    now = await lab.situation(opened)
    launch = now.launch("k1")
    assert launch is not None
    allocation = now.allocation
    return replace(opened, allocation_id=allocation.allocation_id, epoch=allocation.epoch, launch_id=launch.launch_id)


def test_every_reason_has_an_outcome() -> None:
    assert set(OUTCOMES) == set(Reason)
    assert RECOVERED == [Reason.WORKER_LOST, Reason.NODE_FAILED, Reason.PREEMPTED]


@pytest.mark.parametrize("reason", RECOVERED)
def test_a_lost_allocation_is_followed_by_one_new_one(tmp_path: Path, clock: ManualClock, reason: Reason) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await used_session(lab)
        old_credential = await lab.credential(opened)
        backend.say(Observed.FAILED, reason)
        await lab.turns()
        again = await present(lab, opened)
        assert again.epoch == 2
        assert again.launch_id != opened.launch_id
        assert backend.cancels == 1, "the old one is cancelled, whatever is said of it"
        old = await lab.store.run(Store.allocation, opened.allocation_id)
        assert old is not None
        assert (old.phase, old.reason) == (Phase.FAILED, reason)
        await lab.turns()
        assert backend.submits == 1, "the pause comes first"
        clock.forward(lab.policy.recovery_pause_s)
        await lab.turns(2)
        assert backend.submits == 2
        assert len(backend.running) == 1
        # INV-7: nothing of the old epoch comes in any more.
        stale = lab.desk.register(old_credential, b"k" * 32, "host-0")
        assert await asyncio.wrap_future(stale) is None
        assert await asyncio.wrap_future(lab.desk.resume_key(opened.allocation_id, 0)) is None
        assert await lab.dial(again) is not None
        await lab.answer_workspace(again)
        await lab.start_kernel(again)
        await lab.turns()
        assert (await lab.situation(opened)).allocation.phase is Phase.ACTIVE
        assert not lab.preparer.attempt_dir(opened.allocation_id).exists()

    in_lab(tmp_path, scenario, backend, clock=clock)


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason not in RECOVERED])
def test_any_other_end_is_final(tmp_path: Path, clock: ManualClock, reason: Reason) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await used_session(lab)
        backend.say(Observed.FAILED, reason)
        await lab.turns(3)
        workload = (await lab.situation(opened)).workload
        assert (workload.phase, workload.reason, workload.epoch) == (Phase.FAILED, reason, 1)

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_nobody_connected_makes_it_final(tmp_path: Path, clock: ManualClock) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        backend.say(Observed.FAILED, Reason.NODE_FAILED)
        await lab.turns()
        workload = (await lab.situation(opened)).workload
        assert (workload.phase, workload.reason) == (Phase.FAILED, Reason.NODE_FAILED)

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_the_fourth_loss_is_final_and_the_pauses_grow(tmp_path: Path, clock: ManualClock) -> None:
    backend = ObedientBackend(clock)
    assert [pause_s(epoch, 2.0) for epoch in (1, 2, 3, 4)] == [0.0, 2.0, 8.0, 32.0]

    async def scenario(lab: ControlLab) -> None:
        opened = await used_session(lab)
        for epoch in range(1, MAX_RECOVERIES + 1):
            backend.say(Observed.FAILED, Reason.PREEMPTED)
            await lab.turns()
            clock.forward(pause_s(epoch + 1, lab.policy.recovery_pause_s) - 1)
            await lab.turns()
            assert backend.submits == epoch
            clock.forward(1)
            await lab.turns(2)
            assert backend.submits == epoch + 1
        backend.say(Observed.FAILED, Reason.PREEMPTED)
        await lab.turns()
        workload = (await lab.situation(opened)).workload
        assert (workload.phase, workload.reason, workload.epoch) == (Phase.FAILED, Reason.PREEMPTED, 4)
        assert backend.running == []
        assert lab.launches == {}

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_a_worker_that_fell_silent_is_replaced_only_once_its_allocation_is_over(
    tmp_path: Path, clock: ManualClock
) -> None:
    backend = BackendWhoseCancelDoesNothingAtFirst(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await used_session(lab)
        await lab.link(opened, LinkState.RECONNECTING)
        clock.forward(lab.policy.worker_lost_s)
        for _ in range(60):
            await lab.turns()
            clock.forward(5.0)
            assert len(backend.running) <= 1
        now = await lab.situation(opened)
        assert now.workload.epoch == 2
        assert backend.cancels > backend.idle_cancels
        assert len(backend.running) == 1
        events = await lab.events(opened)
        assert events.index("retiring") < events.index("recovering")
        assert "stop_requested" not in events, "nobody wished a stop"

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_a_retired_session_whose_person_left_ends_with_the_reason(tmp_path: Path, clock: ManualClock) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await used_session(lab)
        await lab.link(opened, LinkState.RECONNECTING)
        clock.forward(lab.policy.worker_lost_s)
        await lab.turns()
        lab.clients_connected = False
        for _ in range(10):
            await lab.turns()
            clock.forward(5.0)
        workload = (await lab.situation(opened)).workload
        assert (workload.phase, workload.reason) == (Phase.FAILED, Reason.WORKER_LOST)
        assert backend.running == []

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_a_wish_to_stop_wins_over_a_recovery(tmp_path: Path, clock: ManualClock) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await used_session(lab)
        cancel = backend.cancel

        async def stopped_meanwhile(handle: object) -> None:
            await lab.sessions.request_stop(opened.workload_id, Reason.USER_CANCELLED, OWNER)
            await cancel(handle)  # type: ignore[arg-type]

        backend.cancel = stopped_meanwhile  # type: ignore[method-assign]
        backend.say(Observed.FAILED, Reason.NODE_FAILED)
        await lab.turns(3)
        workload = (await lab.situation(opened)).workload
        assert (workload.reason, workload.epoch) == (Reason.USER_CANCELLED, 1)
        assert workload.phase.is_terminal
        assert backend.submits == 1

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_what_was_found_nowhere_and_turns_up_again_is_cancelled(tmp_path: Path, clock: ManualClock) -> None:
    backend = BackendThatForgetsOnce(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await used_session(lab)
        await lab.link(opened, LinkState.GONE)
        backend.forgets = True
        end, backend._end = backend._end, lambda handle: None  # type: ignore[method-assign]
        await lab.turns()
        clock.forward(lab.policy.gone_debounce_s)
        await lab.turns()
        assert (await lab.situation(opened)).workload.epoch == 2
        backend.forgets = False
        clock.forward(lab.policy.recovery_pause_s)
        await lab.turns(2)
        assert len(backend.running) == 2, "it was not lost after all, and the cancel did not reach it"
        backend._end = end  # type: ignore[method-assign]
        await lab.turns(2)
        assert [each.handle for each in backend.running] == [backend.allocations[1].handle]

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_another_process_cannot_recover_what_it_does_not_drive(tmp_path: Path, clock: ManualClock) -> None:
    from openai4s_provisioner.orchestration.store import Ending, NewEpoch, epochs

    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await used_session(lab)
        ending = Ending(Phase.FAILED, Reason.NODE_FAILED)
        new = NewEpoch("other", "t" * 32, {"k1": "other-launch"})
        with pytest.raises(IllegalTransition):
            await lab.store.run(epochs.open_epoch, opened.allocation_id, ending, new, "somebody else", clock())
        assert (await lab.situation(opened)).allocation.phase is Phase.ACTIVE

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_an_observation_of_the_old_attempt_says_nothing_about_the_new_one(tmp_path: Path, clock: ManualClock) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await used_session(lab)
        asked = await lab.situation(opened)
        backend.say(Observed.FAILED, Reason.NODE_FAILED)
        await lab.turns()
        await lab.reconciler._step(asked, Observation(Observed.FAILED, Reason.NODE_FAILED))
        assert (await lab.situation(opened)).workload.epoch == 2

    in_lab(tmp_path, scenario, backend, clock=clock)
