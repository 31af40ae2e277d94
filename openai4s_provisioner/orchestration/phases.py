"""The life of an allocation as one table: (phase, event) -> phase.

    SUBMITTING -> PENDING (handle known) -> GRANTED (the backend says it runs) -> ACTIVE (four conditions hold)
               -> RELEASING (the cancel barrier) -> COMPLETED | FAILED | CANCELLED | LOST

An event that the table does not hold for a phase raises IllegalTransition and changes nothing. No terminal phase
has a row, so terminal is final (INV-6). Events are named for where they end, or for what was learnt.
"""

from __future__ import annotations

import enum

from .errors import IllegalTransition
from .models import Phase


class PhaseEvent(enum.StrEnum):
    HANDLE_KNOWN = "handle_known"  # the backend named the allocation
    GRANTED = "granted"  # it runs
    READY = "ready"  # the four conditions hold
    RELEASE = "release"  # somebody wishes it stopped; the barrier begins
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"


TABLE: dict[tuple[Phase, PhaseEvent], Phase] = {
    (Phase.SUBMITTING, PhaseEvent.HANDLE_KNOWN): Phase.PENDING,
    # Nothing was ever submitted, or the backend refused it, or it provably never landed.
    (Phase.SUBMITTING, PhaseEvent.CANCELLED): Phase.CANCELLED,
    (Phase.SUBMITTING, PhaseEvent.FAILED): Phase.FAILED,
    (Phase.PENDING, PhaseEvent.GRANTED): Phase.GRANTED,
    (Phase.PENDING, PhaseEvent.RELEASE): Phase.RELEASING,
    (Phase.PENDING, PhaseEvent.COMPLETED): Phase.COMPLETED,
    (Phase.PENDING, PhaseEvent.FAILED): Phase.FAILED,
    (Phase.PENDING, PhaseEvent.CANCELLED): Phase.CANCELLED,
    (Phase.PENDING, PhaseEvent.LOST): Phase.LOST,
    (Phase.GRANTED, PhaseEvent.READY): Phase.ACTIVE,
    (Phase.GRANTED, PhaseEvent.RELEASE): Phase.RELEASING,
    (Phase.GRANTED, PhaseEvent.COMPLETED): Phase.COMPLETED,
    (Phase.GRANTED, PhaseEvent.FAILED): Phase.FAILED,
    (Phase.GRANTED, PhaseEvent.CANCELLED): Phase.CANCELLED,
    (Phase.GRANTED, PhaseEvent.LOST): Phase.LOST,
    (Phase.ACTIVE, PhaseEvent.RELEASE): Phase.RELEASING,
    (Phase.ACTIVE, PhaseEvent.COMPLETED): Phase.COMPLETED,
    (Phase.ACTIVE, PhaseEvent.FAILED): Phase.FAILED,
    (Phase.ACTIVE, PhaseEvent.CANCELLED): Phase.CANCELLED,
    (Phase.ACTIVE, PhaseEvent.LOST): Phase.LOST,
    # What we asked for and then found nowhere was cancelled, not lost: RELEASING has no LOST.
    (Phase.RELEASING, PhaseEvent.COMPLETED): Phase.COMPLETED,
    (Phase.RELEASING, PhaseEvent.FAILED): Phase.FAILED,
    (Phase.RELEASING, PhaseEvent.CANCELLED): Phase.CANCELLED,
}

_ENDING = {
    Phase.COMPLETED: PhaseEvent.COMPLETED,
    Phase.FAILED: PhaseEvent.FAILED,
    Phase.CANCELLED: PhaseEvent.CANCELLED,
    Phase.LOST: PhaseEvent.LOST,
}


def next_phase(phase: Phase, event: PhaseEvent) -> Phase:
    """The phase that `event` leads to. Raises IllegalTransition for an event the table does not hold."""
    after = TABLE.get((phase, event))
    if after is None:
        raise IllegalTransition(f"an allocation that is {phase} cannot become {event}")
    return after


def ending_event(phase: Phase) -> PhaseEvent:
    """The event that ends in the terminal `phase`."""
    return _ENDING[phase]
