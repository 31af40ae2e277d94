"""Whatever happens, in whatever order: INV-3, 4, 6, 7, 8, and nothing leaks once the world has healed.

Random histories of wishes, observations, failures, late landings, crashes and time, against the real store,
reconciler and session service. The backend is not idempotent on purpose: a second submission shows as a second
allocation. `test_broken_rules` holds that a broken copy of each rule is caught here.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from openai4s_provisioner.orchestration import executor, session
from openai4s_provisioner.orchestration.bootstrap import Claims, fresh_nonce
from openai4s_provisioner.orchestration.config import Policy
from openai4s_provisioner.orchestration.errors import CouldNotAsk, SessionEnded
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
from openai4s_provisioner.orchestration.store import Situation, Store
from openai4s_provisioner.testing.control_lab import ControlLab
from openai4s_provisioner.testing.faulty_backends import FakeAllocation, ManualClock, ObedientBackend

POLICY = Policy(call_deadline_s=5.0, workspace_settle_s=0.05)
FORGOTTEN_FOR_GOOD_S = 10 * max(POLICY.gone_debounce_s, POLICY.settle_window_s)
MEMORY = "/dev/shm"  # thousands of commits, none of which has to outlive the machine
MOODS = {
    "submit": ("lands", "lands, answer lost", "lands late", "never lands", "rejected"),
    "lookup": ("works", "fails"),
    "observe": ("works", "fails", "forgets"),
    "cancel": ("works", "does nothing", "answer lost", "fails"),
}


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
    moods: ClassVar[Mapping[str, Sequence[str]]] = MOODS

    def __init__(self) -> None:
        super().__init__()
        self.names = itertools.count()
        for module in (session, executor):  # the order of everything comes from the history, not from random names
            vars(module)["uuid"] = SimpleNamespace(uuid4=self._name)
        self.folder = Path(tempfile.mkdtemp(prefix="o4s-history-", dir=MEMORY if os.path.isdir(MEMORY) else None))
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.backend = BackendInEveryMood(self.clock)
        self.opened: list[OpenedSession] = []
        self.wishes: dict[str, Reason] = {}
        self.over: dict[str, Situation] = {}
        self.forgets_since: float | None = None

    def _name(self) -> SimpleNamespace:
        return SimpleNamespace(hex=f"{next(self.names):032x}")

    def _take_mood(self, data: st.DataObject) -> None:
        self.backend.mood = {what: data.draw(st.sampled_from(moods)) for what, moods in self.moods.items()}
        forgets = self.backend.mood["observe"] == "forgets"
        self.forgets_since = (self.forgets_since or self.clock()) if forgets else None

    def do(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self._take_mood(data)

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
            if self.forgets_since is not None and self.clock() + seconds - self.forgets_since >= FORGOTTEN_FOR_GOOD_S:
                return  # what no question and no cancel has found for so long is believed gone, and that is stated
            self.clock.forward(seconds)
            self.do(self.lab.turns())

    @rule(data=st.data())
    def the_mood_changes(self, data: st.DataObject) -> None:
        self._take_mood(data)

    @rule()
    @precondition(lambda self: len(self.opened) < 3)
    def a_session_comes_up(self) -> None:
        opened = self.do(self.lab.open())
        self.opened.append(opened)
        self.do(self.lab.turns(2))
        self._dial(opened)
        self.do(self.lab.turns(2))

    @rule(connected=st.booleans())
    def somebody_connects_or_leaves(self, connected: bool) -> None:
        self.lab.clients_connected = connected

    @rule(
        data=st.data(), reason=st.sampled_from([Reason.USER_CANCELLED, Reason.SESSION_IDLE_TIMEOUT, Reason.WORKER_LOST])
    )
    @precondition(lambda self: self.opened)
    def somebody_wishes_a_stop(self, data: st.DataObject, reason: Reason) -> None:
        opened = data.draw(st.sampled_from(self.opened))
        if self.do(self.lab.sessions.request_stop(opened.workload_id, reason, "somebody")):
            self.wishes.setdefault(opened.workload_id, reason)

    @rule(data=st.data())
    @precondition(lambda self: self.opened)
    def a_worker_dials_and_its_kernel_answers(self, data: st.DataObject) -> None:
        self._dial(self._present(data.draw(st.sampled_from(self.opened))))

    def _dial(self, opened: OpenedSession) -> None:
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
        self.do(self.lab.link(self._present(data.draw(st.sampled_from(self.opened))), state))

    @rule(data=st.data())
    @precondition(lambda self: self.opened)
    def a_worker_of_an_earlier_attempt_dials_again(self, data: st.DataObject) -> None:
        """Its job was put back into the queue, with the same file: a credential it has not burned, an old epoch."""
        opened = data.draw(st.sampled_from(self.opened))
        now = self._now(opened)
        for allocation_id, epoch, phase in self._attempts(opened):
            if epoch == now.workload.epoch and not Phase(phase).is_terminal:
                continue
            claims = Claims(opened.workload_id, allocation_id, epoch, 0, self.clock() + 60, fresh_nonce())
            answer = self.lab.desk.register(self.lab.issuer.issue(claims), b"k" * 32, "host")
            assert self.do(asyncio.wrap_future(answer, loop=self.loop)) is None, "a stale epoch came in"
            key = self.lab.desk.resume_key(allocation_id, 0)
            assert self.do(asyncio.wrap_future(key, loop=self.loop)) is None, "a stale epoch may resume"

    @rule(data=st.data())
    @precondition(lambda self: self.opened)
    def a_kernel_is_started_again(self, data: st.DataObject) -> None:
        opened = data.draw(st.sampled_from(self.opened))
        try:
            self.do(self.lab.sessions.launch_kernel(opened.workload_id, self._kernel(opened), self.lab.launch()))
        except SessionEnded:
            assert self._is_over_or_ending(opened)
        else:
            assert not self._is_over_or_ending(opened)

    @rule(data=st.data(), code=st.sampled_from([0, 1, 75]))
    @precondition(lambda self: self.opened)
    def a_worker_says_goodbye(self, data: st.DataObject, code: int) -> None:
        opened = self._present(data.draw(st.sampled_from(self.opened)))
        self.do(self.lab.report(opened, {"type": "ended", "exit_code": code, "reason": ""}))
        for each in self._allocations_of(opened, newest=True):  # and it does end
            each.seen = Observation(Observed.FAILED if code else Observed.COMPLETED, exit_code=code)

    @rule(data=st.data(), state=st.sampled_from([Observed.PENDING, Observed.FAILED, Observed.CANCELLED]))
    @precondition(lambda self: self._running())
    def an_allocation_changes_by_itself(self, data: st.DataObject, state: Observed) -> None:
        data.draw(st.sampled_from(self._running())).seen = Observation(state)

    @rule(data=st.data(), reason=st.sampled_from([Reason.NODE_FAILED, Reason.PREEMPTED, Reason.OUT_OF_MEMORY]))
    @precondition(lambda self: self._running())
    def an_allocation_is_lost(self, data: st.DataObject, reason: Reason) -> None:
        data.draw(st.sampled_from(self._running())).seen = Observation(Observed.FAILED, reason)

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
    def no_workload_ever_has_two_running_allocations(self) -> None:
        """But for one that was found nowhere for so long that it counted as lost, and then turned up."""
        for opened in self.opened:
            lost = self._tokens_once_gone(opened)
            running = [each for each in self._allocations_of(opened) if not each.is_over and each.token not in lost]
            assert len(running) <= 1

    @invariant()
    def only_admission_and_recovery_make_attempts(self) -> None:
        if self.opened:
            count = self.do(self.lab.store.run(_count_workloads))
            assert count == len(self.opened)
        for opened in self.opened:
            assert len(self._attempts(opened)) == self._now(opened).workload.epoch

    @invariant()
    def lost_is_what_was_found_nowhere_for_long(self) -> None:
        for opened in self.opened:
            if self._now(opened).workload.phase is Phase.LOST and opened.workload_id not in self.over:
                assert self.forgets_since is not None
                assert self.clock() - self.forgets_since >= POLICY.gone_debounce_s

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
                lost = self._tokens_once_gone(opened)
                assert all(each.is_over or each.token in lost for each in self._allocations_of(opened))

    def teardown(self) -> None:
        try:
            if hasattr(self, "lab"):
                try:
                    self._heal()
                finally:
                    self.do(self.lab.close())
        finally:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            for module in (session, executor):
                vars(module)["uuid"] = uuid
            shutil.rmtree(self.folder)

    def _heal(self) -> None:
        """The backend works again, everything is wished stopped: everything ends, and nothing is left."""
        self.backend.mood = {"submit": "lands", "lookup": "works", "observe": "works", "cancel": "works"}
        for opened in self.opened:
            self.do(self.lab.sessions.request_stop(opened.workload_id, Reason.USER_CANCELLED, "teardown"))
        for _ in range(30):
            self.do(self.lab.turns())
            self.clock.forward(10.0)
        self.clock.forward(10_000.0)  # what was found nowhere is asked after for a while, and then believed gone
        self.do(self.lab.turns(2))
        for opened in self.opened:
            assert self._now(opened).workload.phase.is_terminal
        assert self.backend.running == []
        attempts = self.lab.exchange_dir / "attempts"
        assert not attempts.exists() or list(attempts.iterdir()) == []
        assert list(self.lab.workspace.iterdir()) == []

    def _now(self, opened: OpenedSession) -> Situation:
        situation: Situation = self.do(self.lab.situation(opened))
        return situation

    def _present(self, opened: OpenedSession) -> OpenedSession:
        """The session with the attempt that it is in now."""
        now = self._now(opened)
        launch_id = next((launch.launch_id for launch in now.launches), opened.launch_id)
        return replace(
            opened, allocation_id=now.allocation.allocation_id, epoch=now.workload.epoch, launch_id=launch_id
        )

    def _kernel(self, opened: OpenedSession) -> str:
        return self._now(opened).bindings[0].kernel_id

    def _is_over_or_ending(self, opened: OpenedSession) -> bool:
        workload = self._now(opened).workload
        return workload.phase.is_terminal or workload.desired is Desired.STOPPED

    def _running(self) -> list[FakeAllocation]:
        """In the order of the sessions, since submissions of one turn may overtake each other."""
        return [each for opened in self.opened for each in self._allocations_of(opened) if not each.is_over]

    def _attempts(self, opened: OpenedSession) -> list[tuple[str, int, str]]:
        return [tuple(row) for row in self.do(self.lab.store.run(_rows, "allocation_id, epoch, phase", opened))]

    def _tokens_once_gone(self, opened: OpenedSession) -> set[str]:
        rows = self.do(self.lab.store.run(_rows, "token, gone_since", opened))
        return {token for token, gone_since in rows if gone_since is not None}

    def _allocations_of(self, opened: OpenedSession, newest: bool = False) -> list[FakeAllocation]:
        rows = self.do(self.lab.store.run(_rows, "token, epoch", opened))
        tokens = {token for token, epoch in rows if not newest or epoch == len(rows)}
        return [each for each in self.backend.allocations if each.token in tokens]


def _rows(store: Store, columns: str, opened: OpenedSession) -> list[Any]:
    return store.db._connection.execute(
        f"SELECT {columns} FROM allocation WHERE workload_id = ? ORDER BY epoch", (opened.workload_id,)
    ).fetchall()


def _count_workloads(store: Store) -> int:
    (count,) = store.db._connection.execute("SELECT count(*) FROM workload").fetchone()
    return int(count)


Histories.TestCase.settings = settings(
    max_examples=150,
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
