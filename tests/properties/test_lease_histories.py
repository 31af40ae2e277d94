"""Random histories of one lease over the real store: executions, keeps, sweeps and restarts in any order, at any time.

The model is written the other way round from the code: it remembers what happened, and asks of every end whether it
was due, and of every session that lives whether it should.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from openai4s_provisioner.orchestration import leases as clocks
from openai4s_provisioner.orchestration.errors import SessionEnded
from openai4s_provisioner.orchestration.leases import Activity, Deadline, Expire, Hold, Lease, TakeBack, Warn
from openai4s_provisioner.orchestration.models import (
    Desired,
    ExternalHandle,
    LeasePolicy,
    SessionSpec,
)
from openai4s_provisioner.orchestration.phases import PhaseEvent
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.store import NewSession, Store, drivers, leases

FULL = bool(os.environ.get("OPENAI4S_FULL"))
START = 1000.0
_MEMORY = Path("/dev/shm")  # every step is a commit, and what a disk keeps is not asked here
POLICIES = st.builds(
    LeasePolicy,
    idle_ttl_s=st.integers(1, 20),
    max_lifetime_s=st.integers(1, 60),
    warn_s=st.integers(0, 30),
    busy_counts=st.booleans(),
)


class LeaseHistories(RuleBasedStateMachine):
    """One session that is ACTIVE from the start. Time moves in steps of a quarter of a second."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="o4s-lease-", dir=_MEMORY if _MEMORY.is_dir() else None))
        self.now = START
        self.doing = Activity.UNKNOWN
        self.renewed = START
        self.over: Reason | None = None
        self.announced: float | None = None
        self.warnings: list[float] = []

    @initialize(policy=POLICIES)
    def open(self, policy: LeasePolicy) -> None:
        self.policy = policy
        self.store = Store(self.folder)
        drivers.register(self.store, "d", "host", "boot", 1, START)
        spec = SessionSpec("/work", "/work", "python3")
        new = NewSession("w", "a", "t" * 32, "me", "p", "fake", 1, spec, "k", "l", policy, 10)
        self.store.open_session(new, "d", START)
        self.store.handle_known("a", ExternalHandle("fake", "1"))
        self.store.advance("a", PhaseEvent.GRANTED, START)
        self.store.kernel_ready("l", START)
        self.store.advance("a", PhaseEvent.READY, START)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    # -- what happens

    @rule(quarters=st.integers(1, 60))
    def time_passes(self, quarters: int) -> None:
        self.now += quarters / 4

    @rule(doing=st.sampled_from(Activity), began=st.booleans())
    def the_kernel_says(self, doing: Activity, began: bool) -> None:
        leases.activity(self.store, "l", doing, began, self.now)
        worked = Activity.BUSY in (self.doing, doing)
        if began or (worked and self.policy.busy_counts):
            self.renewed = self.now
        self.doing = doing

    @rule()
    def somebody_keeps_it(self) -> None:
        try:
            leases.keep(self.store, "k", "me", self.now)
        except SessionEnded as refused:
            assert refused.reason is self.over, "a keep is refused only once the wish is written"  # noqa: PT017
            return
        assert self.over is None, "a keep that came too late is refused"
        self.renewed = self.now

    @rule()
    def somebody_restarts_the_kernel(self) -> None:
        self.store.kernel_ready("l", self.now)

    @rule()
    def the_process_starts_anew(self) -> None:
        self.store.close()
        self.store = Store(self.folder)

    @rule(times=st.integers(1, 3))
    def sweeps(self, times: int) -> None:
        for _ in range(times):
            self._sweep()

    @precondition(lambda self: self.over is None)
    @rule()
    def sweep_at_the_very_moment_it_asked_for(self) -> None:
        (group,) = leases.running(self.store, "d")
        step = clocks.decide(group, self.now)
        if isinstance(step, Hold) and step.look_at is not None:
            self.now = max(self.now, step.look_at)
            self._sweep()

    # -- what must hold

    def _sweep(self) -> None:
        before = self._last_active()
        step = leases.sweep(self.store, "w", self.now)
        assert self._last_active() == before, "the sweep reads the idle clock and never writes it"
        if self.over is not None:
            assert isinstance(step, Hold), "what is over is swept no more"
            return
        ends = self._ends()
        if isinstance(step, Expire):
            assert self.now >= step.deadline.at
            assert ends.get(step.deadline.reason) == step.deadline.at
            self.over = step.deadline.reason
        else:
            assert self.now < min(ends.values()), "what is due is released at the first look"
        if isinstance(step, Warn):
            assert step.deadline.at == min(ends.values())
            assert step.deadline.at != self.announced, "one end is announced once"
            self.announced = step.deadline.at
        elif isinstance(step, TakeBack):
            assert self.announced is not None, "what was not announced is not taken back"
            self.announced = None

    def _ends(self) -> dict[Reason, float]:
        ends = {Reason.SESSION_MAX_LIFETIME_EXCEEDED: START + self.policy.max_lifetime_s}
        is_at_work = self.doing is Activity.BUSY and self.policy.busy_counts
        if self.doing is not Activity.UNKNOWN and not is_at_work:
            ends[Reason.SESSION_IDLE_TIMEOUT] = self.renewed + self.policy.idle_ttl_s
        return ends

    def _last_active(self) -> float:
        return float(self.store.db._connection.execute("SELECT last_active_at FROM lease").fetchone()[0])

    @invariant()
    def the_wish_is_the_models(self) -> None:
        workload = self.store.workload("w")
        assert workload is not None
        assert workload.desired is (Desired.RUNNING if self.over is None else Desired.STOPPED)
        assert workload.reason is self.over

    @invariant()
    def the_absolute_clock_stands_where_it_stood(self) -> None:
        started = self.store.db._connection.execute("SELECT started_at FROM lease").fetchone()[0]
        assert started == START


TestLeaseHistories = LeaseHistories.TestCase
TestLeaseHistories.settings = settings(
    max_examples=1000 if FULL else 40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


_idle_end = clocks._idle_end


def _renewed_by_nothing(lease: Lease) -> Deadline | None:
    return None


def _busy_never_counts(lease: Lease) -> Deadline | None:
    return _idle_end(replace(lease, busy_counts=False))


def _unknown_is_idle(lease: Lease) -> Deadline | None:
    return _idle_end(replace(lease, activity=Activity.IDLE if lease.activity == "unknown" else lease.activity))


def _a_second_late(lease: Lease) -> Deadline | None:
    end = _idle_end(lease)
    return None if end is None else replace(end, at=end.at + 1)


def _absolute_is_renewed(lease: Lease) -> Deadline:
    at = max(lease.started_at or 0, lease.last_active_at) + lease.max_lifetime_s
    return Deadline(at, Reason.SESSION_MAX_LIFETIME_EXCEEDED, lease.max_lifetime_s, lease.kernel_id)


MUTANTS = {
    "the idle clock never ends": ("_idle_end", _renewed_by_nothing),
    "a running cell never counts": ("_idle_end", _busy_never_counts),
    "what cannot be read is idle": ("_idle_end", _unknown_is_idle),
    "the end comes a second late": ("_idle_end", _a_second_late),
    "a keep moves the absolute clock": ("_absolute_end", _absolute_is_renewed),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())
def test_a_broken_copy_of_the_rule_is_caught(monkeypatch: pytest.MonkeyPatch, mutant: tuple[str, object]) -> None:
    monkeypatch.setattr(clocks, *mutant)
    quick = settings(
        TestLeaseHistories.settings,
        max_examples=3000,
        database=None,
        phases=[Phase.generate],
        derandomize=True,
        report_multiple_bugs=False,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(LeaseHistories, settings=quick)
