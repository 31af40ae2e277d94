"""A deliberately broken copy of each rule is caught by the random histories. A property that catches nothing is none.

Each breakage is one a hurried change could make. The histories run until one of their properties fails.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from openai4s_provisioner.orchestration import executor, plan
from openai4s_provisioner.orchestration.errors import SessionEnded
from openai4s_provisioner.orchestration.models import Desired
from openai4s_provisioner.orchestration.models import Phase as P
from openai4s_provisioner.orchestration.ports import Observation, Observed
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.store import Store, sqlite
from tests.properties.test_histories import BackendInEveryMood, Histories

Patch = pytest.MonkeyPatch


def _query(patch: Patch, name: str, old: str, new: str) -> None:
    assert old in sqlite.QUERIES[name]
    patch.setitem(sqlite.QUERIES, name, sqlite.QUERIES[name].replace(old, new))


def _without(patch: Patch, *names: str) -> None:
    """A schema without these indexes or triggers."""
    kept = [
        statement
        for statement in sqlite.statements(sqlite.MIGRATIONS[1])
        if not any(f" {name} " in " ".join(statement.split()) for name in names)
    ]
    patch.setitem(sqlite.MIGRATIONS, 1, "".join(kept))


def second_allocation_while_the_first_runs(patch: Patch) -> None:
    """INV-3: a silent worker's allocation is replaced without waiting for its end."""
    original = plan._retired

    def at_once(step: Any, epoch: int) -> Any:
        step = original(step, epoch)
        return plan.Recover(plan.MarkTerminal(P.FAILED, step.reason)) if isinstance(step, plan.Retire) else step

    patch.setattr(plan, "_retired", at_once)


def implicit_allocation(patch: Patch) -> None:
    """INV-4: a kernel that is started after the end gets an allocation nobody admitted."""
    original = Store.bind_launch

    def bind(self: Store, workload_id: str, *args: Any) -> Any:
        try:
            return original(self, workload_id, *args)
        except SessionEnded:
            now = self.situation(workload_id)
            assert now is not None
            return now.allocation

    patch.setattr(Store, "bind_launch", bind)


def terminal_is_rewritten(patch: Patch) -> None:
    """INV-6: a wish reaches what is over."""
    _without(patch, "terminal_workload_is_final")
    _query(patch, "wish_stopped", "AND phase IN ('SUBMITTING', 'PENDING', 'GRANTED', 'ACTIVE', 'RELEASING')", "")


def old_epoch_comes_in(patch: Patch) -> None:
    """INV-7: the fence asks for the allocation only, not for the workload's live epoch."""
    _query(patch, "register_worker", "AND w.epoch = a.epoch", "")
    _query(patch, "register_worker", "AND a.phase IN ('SUBMITTING', 'PENDING', 'GRANTED', 'ACTIVE')", "")


def unknown_is_submitted_again(patch: Patch) -> None:
    """INV-8: an open submission is sent again without a look-up."""
    original = plan._without_handle

    def hasty(workload: Any, allocation: Any, *args: Any) -> Any:
        actions = original(workload, allocation, *args)
        is_look_up = actions == (plan.LookUp(),) and workload.desired is Desired.RUNNING
        return (plan.Submit(),) if is_look_up else actions

    patch.setattr(plan, "_without_handle", hasty)


def failing_look_up_is_no(patch: Patch) -> None:
    """INV-8: "I could not ask" is taken for "there is none"."""
    find = BackendInEveryMood.find_by_token

    async def never_fails(self: Any, token: str) -> Any:
        with contextlib.suppress(Exception):
            return await find(self, token)
        return None

    patch.setattr(BackendInEveryMood, "find_by_token", never_fails)


def no_settle_window(patch: Patch) -> None:
    original = plan.after_empty_lookup

    def at_once(workload: Any, allocation: Any, asked_at: float, policy: Any) -> Any:
        return original(workload, allocation, asked_at, replace(policy, settle_window_s=0.0))

    patch.setattr(executor, "after_empty_lookup", at_once)


def no_debounce(patch: Patch) -> None:
    original = plan._ending

    def at_once(workload: Any, allocation: Any, seen: Any, workers: Any, now: float, policy: Any) -> Any:
        return original(workload, allocation, seen, workers, now, replace(policy, gone_debounce_s=0.0))

    patch.setattr(plan, "_ending", at_once)


def could_not_ask_is_gone(patch: Patch) -> None:
    patch.setattr(plan, "_COULD_NOT_ASK", Observation(Observed.GONE))


def fact_overwrites_wish(patch: Patch) -> None:
    """An observer of a phase also writes what was wished."""
    wish = "SET phase = :phase, desired = 'RUNNING', stop_reason = NULL, stop_detail = ''"
    _query(patch, "set_workload_phase", "SET phase = :phase", wish)


def later_wish_replaces_the_first(patch: Patch) -> None:
    _query(patch, "wish_stopped", "AND desired = 'RUNNING'", "")


def end_is_assumed(patch: Patch) -> None:
    """The barrier marks the end when the cancel was accepted, not when the end is seen."""
    original = plan._barrier

    def impatient(allocation: Any, *args: Any) -> Any:
        if allocation.cancel_asked_at is not None:
            return (plan.MarkTerminal(P.CANCELLED, Reason.USER_CANCELLED),)
        return original(allocation, *args)

    patch.setattr(plan, "_barrier", impatient)


BROKEN: list[Callable[[Patch], None]] = [
    second_allocation_while_the_first_runs,
    implicit_allocation,
    terminal_is_rewritten,
    old_epoch_comes_in,
    unknown_is_submitted_again,
    failing_look_up_is_no,
    no_settle_window,
    no_debounce,
    could_not_ask_is_gone,
    fact_overwrites_wish,
    later_wish_replaces_the_first,
    end_is_assumed,
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("breakage", BROKEN, ids=lambda breakage: breakage.__name__)
def test_a_broken_rule_is_caught(breakage: Callable[[Patch], None], monkeypatch: Patch) -> None:
    monkeypatch.setattr("openai4s_provisioner.orchestration.reconciler._FIRST_PAUSE_S", 0.0)
    breakage(monkeypatch)
    once = settings(
        max_examples=600,
        stateful_step_count=30,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises((AssertionError, sqlite3.IntegrityError)) as caught:  # whichever property it breaks
        run_state_machine_as_test(Histories, settings=once)
    print(
        f"{breakage.__name__}: {str(caught.value).splitlines()[0][:200] if str(caught.value) else caught.traceback[-1]}"
    )
