"""The end of an allocation over a whole control plane with a clock that the test moves: warnings, and extensions."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.errors import CouldNotAsk, Refused
from openai4s_provisioner.orchestration.models import ExternalHandle, Phase, ResourceProfile
from openai4s_provisioner.orchestration.ports import Observation, Observed
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.session import OpenedSession
from openai4s_provisioner.orchestration.steady_clock import steady_time
from openai4s_provisioner.orchestration.store import Ending, NewEpoch, Store, epochs
from openai4s_provisioner.orchestration.walltime import WalltimeNotice, WalltimeState
from openai4s_provisioner.orchestration.walltime_desk import WalltimeDesk
from openai4s_provisioner.orchestration.walltime_watch import WalltimeWatch
from openai4s_provisioner.testing.control_lab import OWNER, ControlLab, in_lab
from openai4s_provisioner.testing.faulty_backends import ManualClock, ObedientBackend


class BackendWithAnEnd(ObedientBackend):
    """Its allocations end an hour after the first look; a person may move that, unless it is told to refuse."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.ends_at = clock() + 3600.0
        self.waits: Observation | None = None
        self.extensible = True
        self.broken = False

    async def observe(self, handles: Sequence[ExternalHandle]) -> Mapping[ExternalHandle, Observation]:
        seen = await super().observe(handles)
        if self.waits is not None:
            return dict.fromkeys(seen, self.waits)
        return {handle: dataclasses.replace(each, ends_at=self.ends_at) for handle, each in seen.items()}

    def can_extend(self, profile: ResourceProfile) -> bool:
        return self.extensible

    async def extend(self, handle: ExternalHandle, profile: ResourceProfile, seconds: int) -> float:
        if self.broken:
            raise CouldNotAsk("nobody answers")
        self.ends_at += seconds
        return self.ends_at


class BackendWhoseAnswerIsLongOnItsWay(BackendWithAnEnd):
    """It answers as things were when it was asked, and that arrives when the test wants it to."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.asked, self.on_its_way = asyncio.Event(), asyncio.Event()
        self.on_its_way.set()

    async def observe(self, handles: Sequence[ExternalHandle]) -> Mapping[ExternalHandle, Observation]:
        answer = await super().observe(handles)
        if not self.on_its_way.is_set():
            self.asked.set()
        await self.on_its_way.wait()
        return answer


@pytest.fixture
def backend(clock: ManualClock) -> BackendWithAnEnd:
    return BackendWithAnEnd(clock)


def desk_of(lab: ControlLab) -> WalltimeDesk:
    return WalltimeDesk(lab.config, lab.backends, lab.store, lab.clock)


def watch_of(lab: ControlLab, told: list[WalltimeNotice]) -> WalltimeWatch:
    desk = desk_of(lab)
    return WalltimeWatch(
        store=lab.store,
        daemon=lab.daemon,
        config=lab.config,
        can_extend=desk.can_extend,
        notify=told.append,
        clock=lab.clock,
    )


async def kinds(lab: ControlLab, opened: OpenedSession) -> list[str]:
    return [each.kind for each in await lab.store.run(Store.events, opened.workload_id)]


def test_an_end_is_announced_once_taken_back_after_an_extension_and_announced_again(
    tmp_path: Path, clock: ManualClock, backend: BackendWithAnEnd
) -> None:
    async def scenario(lab: ControlLab) -> None:
        told: list[WalltimeNotice] = []
        watch = watch_of(lab, told)
        opened = await lab.active_session()
        await lab.turns()
        first = backend.ends_at
        assert (await lab.situation(opened)).allocation.ends_at == first
        assert await watch.turn() == pytest.approx(first - 600.0)
        clock.forward(first - 600.0 - clock())
        await watch.turn()
        await watch.turn()
        assert [(each.state, each.ends_at, each.can_be_extended) for each in told] == [
            (WalltimeState.WARNING, first, True)
        ]
        extended = await desk_of(lab).extend(opened.workload_id, 3600, OWNER)
        assert extended.ends_at == first + 3600.0
        await watch.turn()
        assert told[-1].state is WalltimeState.WITHDRAWN
        assert told[-1].ends_at == first + 3600.0
        clock.forward(3600.0)
        await watch.turn()
        assert [each.state for each in told] == ["warning", "withdrawn", "warning"]
        heard = await kinds(lab, opened)
        assert heard.count("walltime_warning") == 2
        assert heard.count("extended") == 1

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_what_was_announced_is_not_announced_again_by_a_restarted_server(
    tmp_path: Path, clock: ManualClock, backend: BackendWithAnEnd
) -> None:
    async def scenario(lab: ControlLab) -> None:
        told: list[WalltimeNotice] = []
        await lab.active_session()
        await lab.turns()
        clock.forward(3500.0)
        await watch_of(lab, told).turn()
        await watch_of(lab, told).turn()
        assert len(told) == 1

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_one_session_that_cannot_be_looked_at_keeps_no_other_from_being_warned(
    tmp_path: Path, clock: ManualClock, backend: BackendWithAnEnd
) -> None:
    async def scenario(lab: ControlLab) -> None:
        heard: list[str] = []

        def notify(notice: WalltimeNotice) -> None:
            heard.append(notice.workload_id)
            if len(heard) == 1:
                raise RuntimeError("nobody can be told of this one")

        opened = {(await lab.active_session(kernel)).workload_id for kernel in ("one", "two")}
        await lab.turns()
        clock.forward(3500.0)
        watch = watch_of(lab, [])
        watch._notify = notify
        await watch.turn()
        assert set(heard) == opened

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_an_end_that_the_backend_moves_by_itself_is_followed(
    tmp_path: Path, clock: ManualClock, backend: BackendWithAnEnd
) -> None:
    async def scenario(lab: ControlLab) -> None:
        told: list[WalltimeNotice] = []
        opened = await lab.active_session()
        clock.forward(1000.0)
        backend.ends_at = clock() + 300.0  # an administrator made it shorter
        await lab.turns()
        await watch_of(lab, told).turn()
        assert [each.ends_at for each in told] == [backend.ends_at]
        assert (await lab.situation(opened)).allocation.ends_at == backend.ends_at

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_a_look_that_began_before_an_extension_does_not_bring_the_former_end_back(
    tmp_path: Path, clock: ManualClock
) -> None:
    backend = BackendWhoseAnswerIsLongOnItsWay(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        told: list[WalltimeNotice] = []
        clock.forward(3100)
        await watch_of(lab, told).turn()
        assert [each.state for each in told] == [WalltimeState.WARNING]
        backend.on_its_way.clear()
        look = asyncio.create_task(lab.reconciler.turn())
        await backend.asked.wait()
        extended = await desk_of(lab).extend(opened.workload_id, 1200, OWNER)
        backend.on_its_way.set()
        await look
        assert (await lab.situation(opened)).allocation.ends_at == extended.ends_at, "not for one look"
        await watch_of(lab, told).turn()
        assert [each.state for each in told] == [WalltimeState.WARNING, WalltimeState.WITHDRAWN]
        backend.ends_at -= 600.0  # somebody else shortens it
        await lab.turns()
        assert (await lab.situation(opened)).allocation.ends_at == extended.ends_at - 600.0

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_an_answer_about_an_earlier_attempt_ends_nothing_of_the_next_one(tmp_path: Path, clock: ManualClock) -> None:
    """The step before it opened the next epoch while the question about the old one was on its way."""
    backend = BackendWhoseAnswerIsLongOnItsWay(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        old = (await lab.situation(opened)).allocation
        backend.say(Observed.FAILED, Reason.NODE_FAILED)
        backend.on_its_way.clear()
        look = asyncio.create_task(lab.reconciler.turn())
        await backend.asked.wait()
        ending = Ending(Phase.FAILED, Reason.NODE_FAILED)
        new = NewEpoch("next", "n" * 48, {})
        args = (old.allocation_id, ending, new, lab.daemon.daemon_id, clock())
        await lab.store.run(epochs.open_epoch, *args)
        await lab.store.run(Store.handle_known, "next", ExternalHandle("fake", "next"))
        backend.on_its_way.set()
        await look
        now = await lab.situation(opened)
        assert (now.allocation.allocation_id, now.allocation.phase) == ("next", Phase.PENDING)

    in_lab(tmp_path, scenario, backend, clock=clock)


@pytest.mark.parametrize(
    ("seconds", "actor", "reason", "told"),
    [
        (0, OWNER, Reason.INVALID_SPEC, "cannot be extended by 0 seconds"),
        (3600, "another", Reason.AUTHORIZATION_DENIED, "belongs to somebody else"),
    ],
)
def test_a_wrong_request_is_refused_and_recorded(
    tmp_path: Path, clock: ManualClock, backend: BackendWithAnEnd, seconds: int, actor: str, reason: Reason, told: str
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session()
        before = backend.ends_at
        with pytest.raises(Refused, match=told) as refused:
            await desk_of(lab).extend(opened.workload_id, seconds, actor)
        assert refused.value.reason is reason
        assert backend.ends_at == before
        assert (await kinds(lab, opened))[-1] == "extension_refused"

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_a_site_that_fixes_time_limits_says_so_in_one_sentence(
    tmp_path: Path, clock: ManualClock, backend: BackendWithAnEnd
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session()
        backend.extensible = False
        with pytest.raises(Refused, match="cannot be extended here: their time limit is fixed") as refused:
            await desk_of(lab).extend(opened.workload_id, 3600, OWNER)
        assert refused.value.reason is Reason.POLICY_REJECTED
        backend.extensible, backend.broken = True, True
        with pytest.raises(Refused, match="is not known: no answer came in time") as refused:
            await desk_of(lab).extend(opened.workload_id, 3600, OWNER)
        assert refused.value.reason is Reason.BACKEND_UNAVAILABLE

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_a_session_that_waits_or_is_over_has_nothing_to_extend(
    tmp_path: Path, clock: ManualClock, backend: BackendWithAnEnd
) -> None:
    async def scenario(lab: ControlLab) -> None:
        backend.waits = Observation(Observed.PENDING, waiting="no machine is free", estimated_start=clock() + 1200.0)
        opened = await lab.open()
        await lab.turns(2)
        with pytest.raises(Refused, match="it is PENDING"):
            await desk_of(lab).extend(opened.workload_id, 3600, OWNER)
        with pytest.raises(Refused, match="no such session"):
            await desk_of(lab).extend("nothing", 3600, OWNER)

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_what_the_queue_says_reaches_the_sentence_and_goes_with_the_grant(
    tmp_path: Path, clock: ManualClock, backend: BackendWithAnEnd
) -> None:
    async def scenario(lab: ControlLab) -> None:
        backend.waits = Observation(
            Observed.PENDING, waiting="no machine is free", estimated_start=clock() + 1200.0, position=2
        )
        opened = await lab.open()
        await lab.turns(2)
        readiness = (await lab.situation(opened)).readiness()
        assert "waiting for the allocation (no machine is free; position 2; estimated " in readiness.sentence
        assert ", as of " in readiness.sentence
        backend.waits = None
        await lab.turns(1)
        now = await lab.situation(opened)
        assert (now.allocation.estimated_start, now.allocation.position, now.allocation.waiting) == (None, None, "")

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_an_end_is_the_backend_s_time_whatever_was_corrected_here_since_this_process_began(
    tmp_path: Path, clock: ManualClock, backend: BackendWithAnEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This machine's clock was two hours slow when the process began, and was set right afterwards.
    monkeypatch.setattr(steady_time, "_offset", steady_time._offset - 7200.0)
    backend.ends_at = time.time() + 300.0

    async def scenario(lab: ControlLab) -> None:
        told: list[WalltimeNotice] = []
        can_extend = desk_of(lab).can_extend
        watch = WalltimeWatch(
            store=lab.store, daemon=lab.daemon, config=lab.config, can_extend=can_extend, notify=told.append
        )
        await lab.active_session()
        await lab.turns()
        await watch.turn()
        (warning,) = told
        assert warning.state is WalltimeState.WARNING
        assert warning.seconds_left == pytest.approx(300.0, abs=60.0)

    in_lab(tmp_path, scenario, backend, clock=clock)
