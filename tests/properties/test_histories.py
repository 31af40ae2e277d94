"""Whatever happens, in whatever order: INV-3, INV-6, INV-8, and nothing leaks once the world has healed.

Random histories of wishes, observations, failures, late landings, crashes and time, against the real store,
reconciler and session service. The backend is not idempotent on purpose: a second submission shows as a second
allocation.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from openai4s_provisioner.orchestration.config import Policy
from openai4s_provisioner.orchestration.errors import CouldNotAsk
from openai4s_provisioner.orchestration.models import Desired, ExternalHandle, LinkState, Phase
from openai4s_provisioner.orchestration.ports import (
    AllocationRequest,
    Created,
    Observation,
    Observed,
    Rejected,
    SubmitResult,
    Unknown,
)
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.session import OpenedSession
from openai4s_provisioner.orchestration.store import Situation
from openai4s_provisioner.testing.control_lab import ControlLab
from openai4s_provisioner.testing.faulty_backends import FakeAllocation, ManualClock, ObedientBackend

POLICY = Policy(call_deadline_s=5.0, workspace_settle_s=0.05)
SUBMITS = ("lands", "lands, answer lost", "lands late", "never lands", "rejected")
LOOKUPS = ("works", "fails")
OBSERVES = ("works", "fails", "forgets")
CANCELS = ("works", "does nothing", "answer lost", "fails")


@dataclass
class BackendInEveryMood(ObedientBackend):
    """Fails as the history says. A token that is sent twice makes two allocations."""

    mood: dict[str, str] = field(
        default_factory=lambda: {"submit": "lands", "lookup": "works", "observe": "works", "cancel": "works"}
    )

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        self.submits += 1
        mood = self.mood["submit"]
        if mood == "rejected":
            return Rejected(Reason.UNSCHEDULABLE, "no")
        if mood == "never lands":
            return Unknown(request.token)
        handle = ExternalHandle(self.name, f"alloc-{next(self._numbers)}")
        delay_s = POLICY.settle_window_s - 5 if mood == "lands late" else 0.0
        self.allocations.append(FakeAllocation(request.token, handle, self.clock() + delay_s))
        return Created(handle) if mood == "lands" else Unknown(request.token)

    async def find_by_token(self, token: str) -> ExternalHandle | None:
        if self.mood["lookup"] == "fails":
            raise CouldNotAsk("no")
        return await super().find_by_token(token)

    async def observe(self, handles: Sequence[ExternalHandle]) -> Mapping[ExternalHandle, Observation]:
        if self.mood["observe"] == "fails":
            raise CouldNotAsk("no")
        if self.mood["observe"] == "forgets":
            return {handle: Observation(Observed.GONE) for handle in handles}
        return await super().observe(handles)

    async def cancel(self, handle: ExternalHandle) -> None:
        mood = self.mood["cancel"]
        if mood in ("works", "answer lost"):
            self._end(handle)
        if mood in ("answer lost", "fails"):
            raise CouldNotAsk("no")


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="o4s-history-"))
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.backend = BackendInEveryMood(self.clock)
        self.opened: list[OpenedSession] = []
        self.wishes: dict[str, Reason] = {}
        self.over: dict[str, Situation] = {}

    def do(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @initialize(submit=st.sampled_from(SUBMITS), cancel=st.sampled_from(CANCELS))
    def start(self, submit: str, cancel: str) -> None:
        self.backend.mood |= {"submit": submit, "cancel": cancel}

        async def build() -> ControlLab:
            lab = ControlLab(self.folder, self.backend, clock=self.clock, policy=POLICY)
            lab.reports.start()
            return lab

        self.lab = self.do(build())

    # -- what may happen -------------------------------------------------------------------------------------------

    @rule()
    @precondition(lambda self: len(self.opened) < 3)
    def open(self) -> None:
        self.opened.append(self.do(self.lab.open()))

    @rule(seconds=st.sampled_from([1.0, 5.0, 20.0, 61.0, 301.0]), turns=st.integers(1, 4))
    def time_passes(self, seconds: float, turns: int) -> None:
        for _ in range(turns):
            self.clock.forward(seconds)
            self.do(self.lab.turns())

    @rule(
        submit=st.sampled_from(SUBMITS),
        lookup=st.sampled_from(LOOKUPS),
        observe=st.sampled_from(OBSERVES),
        cancel=st.sampled_from(CANCELS),
    )
    def the_mood_changes(self, **mood: str) -> None:
        self.backend.mood = mood

    @rule(
        data=st.data(), reason=st.sampled_from([Reason.USER_CANCELLED, Reason.SESSION_IDLE_TIMEOUT, Reason.WORKER_LOST])
    )
    @precondition(lambda self: self.opened)
    def somebody_wishes_a_stop(self, data: st.DataObject, reason: Reason) -> None:
        opened = data.draw(st.sampled_from(self.opened))
        if self.do(self.lab.sessions.request_stop(opened.workload_id, reason, "somebody")):
            self.wishes[opened.workload_id] = reason

    @rule(data=st.data())
    @precondition(lambda self: self.opened)
    def a_worker_dials_and_its_kernel_answers(self, data: st.DataObject) -> None:
        opened = data.draw(st.sampled_from(self.opened))

        async def dial() -> None:
            try:
                registered = await self.lab.dial(opened)
            except FileNotFoundError:  # no attempt file: nothing was submitted, or it is over
                return
            if registered is not None:
                await self.lab.answer_workspace(opened)
                await self.lab.start_kernel(opened)

        self.do(dial())

    @rule(data=st.data(), state=st.sampled_from([LinkState.CONNECTED, LinkState.RECONNECTING]))
    @precondition(lambda self: self.opened)
    def a_link_changes(self, data: st.DataObject, state: LinkState) -> None:
        self.do(self.lab.link(data.draw(st.sampled_from(self.opened)), state))

    @rule(data=st.data(), code=st.sampled_from([0, 1, 75]))
    @precondition(lambda self: self.opened)
    def a_worker_says_goodbye(self, data: st.DataObject, code: int) -> None:
        opened = data.draw(st.sampled_from(self.opened))
        self.do(self.lab.report(opened, {"type": "ended", "exit_code": code, "reason": ""}))
        for each in self._allocations_of(opened):  # and it does end
            each.seen = Observation(Observed.FAILED if code else Observed.COMPLETED, exit_code=code)

    @rule(data=st.data(), state=st.sampled_from([Observed.PENDING, Observed.FAILED, Observed.CANCELLED]))
    @precondition(lambda self: self.backend.running)
    def an_allocation_changes_by_itself(self, data: st.DataObject, state: Observed) -> None:
        data.draw(st.sampled_from(self.backend.running)).seen = Observation(state)

    @rule()
    def the_process_is_killed(self) -> None:
        for opened in self.opened:
            if (
                self._now(opened).workload.desired is Desired.RUNNING
                and not self._now(opened).workload.phase.is_terminal
            ):
                self.wishes.setdefault(opened.workload_id, Reason.SERVER_GONE)
        self.do(self.lab.restart())

    # -- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def no_token_ever_has_two_allocations(self) -> None:
        tokens = [each.token for each in self.backend.allocations]
        assert len(tokens) == len(set(tokens))

    @invariant()
    def terminal_rows_never_change(self) -> None:
        for opened in self.opened:
            now = self._now(opened)
            if now.workload.phase.is_terminal:
                assert self.over.setdefault(opened.workload_id, now) == now

    @invariant()
    def the_first_wish_is_the_reason(self) -> None:
        for opened in self.opened:
            if (wish := self.wishes.get(opened.workload_id)) is not None:
                assert self._now(opened).workload.reason is wish

    @invariant()
    def nothing_runs_for_what_is_over(self) -> None:
        """An allocation of a session that ended has ended, or was said to be gone."""
        for opened in self.opened:
            now = self._now(opened)
            if now.workload.phase in (Phase.COMPLETED, Phase.FAILED, Phase.CANCELLED):
                assert all(each.is_over for each in self._allocations_of(opened)) or self.backend_forgot(now)

    def backend_forgot(self, now: Situation) -> bool:
        return now.allocation.gone_since is not None

    def teardown(self) -> None:
        try:
            if hasattr(self, "lab"):
                self._heal()
                self.do(self.lab.close())
        finally:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            shutil.rmtree(self.folder)

    def _heal(self) -> None:
        """The backend works again, everything is wished stopped: everything ends, and nothing is left."""
        self.backend.mood = {"submit": "lands", "lookup": "works", "observe": "works", "cancel": "works"}
        for opened in self.opened:
            self.do(self.lab.sessions.request_stop(opened.workload_id, Reason.USER_CANCELLED, "teardown"))
        for _ in range(30):
            self.do(self.lab.turns())
            self.clock.forward(10.0)
        for opened in self.opened:
            now = self._now(opened)
            assert now.workload.phase.is_terminal
            lost = now.workload.phase is Phase.LOST or self.backend_forgot(now)
            assert lost or all(each.is_over for each in self._allocations_of(opened))
        attempts = self.lab.exchange_dir / "attempts"
        assert not attempts.exists() or list(attempts.iterdir()) == []
        assert list(self.lab.workspace.iterdir()) == []

    def _now(self, opened: OpenedSession) -> Situation:
        situation: Situation = self.do(self.lab.situation(opened))
        return situation

    def _allocations_of(self, opened: OpenedSession) -> list[FakeAllocation]:
        token = self._now(opened).allocation.token
        return [each for each in self.backend.allocations if each.token == token]


Histories.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.fixture(autouse=True, scope="module")
def no_pauses() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("openai4s_provisioner.orchestration.reconciler._FIRST_PAUSE_S", 0.0)
        yield


TestHistories = Histories.TestCase
