"""The table of phases: what it allows, what it never holds, and that the schema has the same sets."""

from __future__ import annotations

import itertools
import re

import pytest

from openai4s_provisioner.orchestration.errors import IllegalTransition
from openai4s_provisioner.orchestration.models import Phase
from openai4s_provisioner.orchestration.phases import TABLE, PhaseEvent, ending_event, next_phase
from openai4s_provisioner.orchestration.store.sqlite import QUERIES, SCHEMA


def test_the_good_way_leads_from_submitting_to_completed() -> None:
    way = [PhaseEvent.HANDLE_KNOWN, PhaseEvent.GRANTED, PhaseEvent.READY, PhaseEvent.RELEASE, PhaseEvent.COMPLETED]
    phase = Phase.SUBMITTING
    for event in way:
        phase = next_phase(phase, event)
    assert phase is Phase.COMPLETED


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase.is_terminal])
def test_terminal_is_final(phase: Phase) -> None:
    for event in PhaseEvent:
        with pytest.raises(IllegalTransition):
            next_phase(phase, event)


def test_an_event_that_the_table_does_not_hold_raises() -> None:
    for pair in itertools.product(Phase, PhaseEvent):
        if pair not in TABLE:
            with pytest.raises(IllegalTransition):
                next_phase(*pair)


def test_from_every_active_phase_an_end_can_be_reached() -> None:
    for phase in Phase:
        if phase.is_active_allocation:
            assert any(after.is_terminal for (before, _), after in TABLE.items() if before is phase)


def test_no_phase_but_submitting_can_end_without_a_handle() -> None:
    """LOST and COMPLETED say something about an allocation that existed."""
    endings = {after for (before, _), after in TABLE.items() if before is Phase.SUBMITTING and after.is_terminal}
    assert endings == {Phase.CANCELLED, Phase.FAILED}


def test_the_ending_event_of_a_terminal_phase_leads_there() -> None:
    for phase in Phase:
        if phase.is_terminal:
            assert next_phase(Phase.GRANTED, ending_event(phase)) is phase


def test_the_schema_and_the_statements_hold_the_same_two_sets() -> None:
    terminal = {phase.value for phase in Phase if phase.is_terminal}
    active = {phase.value for phase in Phase if phase.is_active_allocation}
    index = re.search(r"one_active_allocation.*?\((\'SUBMITTING.*?)\)", SCHEMA, re.DOTALL)
    assert index is not None
    assert set(re.findall(r"'(\w+)'", index[1])) == active
    for listed in re.findall(r"phase IN \(('COMPLETED.*?)\)", SCHEMA):
        assert set(re.findall(r"'(\w+)'", listed)) == terminal
    registering = active - {"RELEASING"}  # the fence of the cancel barrier
    for name, text in QUERIES.items():
        for listed in re.findall(r"phase IN \((.*?)\)", text):
            expected = registering if name in ("register_worker", "is_expected") else active
            assert set(re.findall(r"'(\w+)'", listed)) == expected, name
