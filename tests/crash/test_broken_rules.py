"""A deliberately broken copy of each rule is caught by the random histories. A property that catches nothing is none.

Each breakage is one a hurried change could make. The histories run until one of their properties fails.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RULE_MARKER, run_state_machine_as_test

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


@dataclass(frozen=True)
class Focus:
    """Where a breakage shows: the moods of the backend, and what may happen beside starts and the passing of time."""

    rules: frozenset[str] = frozenset()
    moods: Mapping[str, Sequence[str]] = field(default_factory=dict)


GOOD = {"submit": ("lands",), "lookup": ("works",), "observe": ("works",), "cancel": ("works",)}
ALWAYS = {"open", "time_passes"}
STOP, DIAL, LINK = "somebody_wishes_a_stop", "a_worker_dials_and_its_kernel_answers", "a_link_changes"
BROKEN: dict[Callable[[Patch], None], Focus] = {
    second_allocation_while_the_first_runs: Focus(
        frozenset({DIAL, LINK, "somebody_connects_or_leaves"}), {"cancel": ("does nothing",)}
    ),
    implicit_allocation: Focus(frozenset({STOP, "a_kernel_is_started_again"})),
    terminal_is_rewritten: Focus(frozenset({STOP, "an_allocation_is_lost"})),
    old_epoch_comes_in: Focus(frozenset({STOP, "an_allocation_is_lost", "a_worker_of_an_earlier_attempt_dials_again"})),
    unknown_is_submitted_again: Focus(moods={"submit": ("lands, answer lost",)}),
    failing_look_up_is_no: Focus(moods={"submit": ("lands, answer lost",), "lookup": ("fails",)}),
    no_settle_window: Focus(moods={"submit": ("lands late",)}),
    no_debounce: Focus(moods={"observe": ("forgets",)}),
    could_not_ask_is_gone: Focus(moods={"observe": ("fails",)}),
    fact_overwrites_wish: Focus(frozenset({STOP})),
    later_wish_replaces_the_first: Focus(frozenset({STOP})),
    end_is_assumed: Focus(frozenset({STOP}), {"cancel": ("does nothing",)}),
}


def _focused(focus: Focus) -> type[Histories]:
    """The same histories with fewer rules: a breakage is looked for where it shows."""
    kept = focus.rules | ALWAYS
    every = {name for name, member in vars(Histories).items() if hasattr(member, RULE_MARKER)}
    assert kept <= every, "a rule was renamed"
    dropped = dict.fromkeys(every - kept)
    return type("Focused", (Histories,), {**dropped, "moods": GOOD | dict(focus.moods)})


@pytest.mark.parametrize("breakage", BROKEN, ids=lambda breakage: breakage.__name__)
def test_a_broken_rule_is_caught(breakage: Callable[[Patch], None], monkeypatch: Patch) -> None:
    with pytest.raises((AssertionError, sqlite3.IntegrityError)):
        _look_for_a_violation(_focused(BROKEN[breakage]), monkeypatch, breakage)


@pytest.mark.parametrize("breakage", BROKEN, ids=lambda breakage: breakage.__name__)
def test_the_rule_itself_is_not_mistaken_for_its_broken_copy(
    breakage: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    _look_for_a_violation(_focused(BROKEN[breakage]), monkeypatch, lambda patch: None, examples=10)


def _look_for_a_violation(
    histories: type[Histories], patch: Patch, breakage: Callable[[Patch], None], examples: int = 300
) -> None:
    patch.setattr("openai4s_provisioner.orchestration.reconciler._FIRST_PAUSE_S", 0.0)
    breakage(patch)
    once = settings(
        max_examples=examples,
        stateful_step_count=25,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(histories, settings=once)
