"""What a backend's word adds to what is written down of an allocation, short of moving its phase. Pure.

Nothing when nothing changed: estimates that a backend computes anew move a little, and are not written each time. What
a worker that does not come wrote down lies in a file, so here it is only asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .models import Allocation, Phase, WorkerRow
from .ports import Observation, Observed
from .walltime import has_moved

_ESTIMATE_MOVED_S = 60.0  # a person reads minutes
_ESTIMATE_OLD_S = 300.0
_LATE_S = 3.0  # since it was granted: a worker that comes at all comes sooner, as a rule


@dataclass(frozen=True)
class NoteGone:
    """Found nowhere since `since`; None takes the suspicion back."""

    since: float | None


@dataclass(frozen=True)
class NoteWaiting:
    waiting: str
    backend_detail: str
    estimated_start: float | None = None
    position: int | None = None


@dataclass(frozen=True)
class NoteEnd:
    """When its time is over, as the backend says now; it was asked after so many extensions."""

    ends_at: float
    extensions: int


@dataclass(frozen=True)
class NotePause:
    """The site has paused it; False: it goes on."""

    is_paused: bool


@dataclass(frozen=True)
class NoteWay:
    """Why this rank does not come, as far as its worker could write it down."""

    rank: int


Note = NoteGone | NoteWaiting | NoteEnd | NotePause | NoteWay


def talks(workers: Sequence[WorkerRow]) -> bool:
    """A second witness that it lives, whatever the backend says."""
    return any(worker.connected and worker.ended_at is None for worker in workers)


def as_asked(seen: Observation | None, asked: Allocation, now: Allocation) -> Observation | None:
    """What an answer still says, when the question was asked of `asked` and things stand as in `now`.

    An answer may be long on its way. If another attempt has begun meanwhile it is about a thing of the past; if a
    person has put the end off, it may tell the end from before.
    """
    if seen is None or asked.allocation_id != now.allocation_id:
        return None
    return seen if asked.extensions == now.extensions else replace(seen, ends_at=None)


def notes_of(allocation: Allocation, seen: Observation, workers: Sequence[WorkerRow], now: float) -> tuple[Note, ...]:
    """What to write down; nothing when nothing changed."""
    if seen.state is Observed.UNKNOWN:
        return ()
    notes: list[Note] = []
    suspected = seen.state is Observed.GONE and not talks(workers)
    if suspected and (allocation.gone_since is None or allocation.gone_since > now):  # a clock may have been set back
        notes.append(NoteGone(now))
    if not suspected and allocation.gone_since is not None:
        notes.append(NoteGone(None))
    waits = seen.state is Observed.PENDING and allocation.phase is Phase.PENDING
    if waits and _says_more(allocation, seen, now):
        notes.append(NoteWaiting(seen.waiting, seen.backend_detail, seen.estimated_start, seen.position))
    runs = allocation.phase in (Phase.GRANTED, Phase.ACTIVE)
    is_paused = seen.state is Observed.PAUSED
    if runs and is_paused is not (allocation.paused_since is not None):
        notes.append(NotePause(is_paused))
    if runs and seen.ends_at is not None and has_moved(allocation.ends_at, seen.ends_at):
        notes.append(NoteEnd(seen.ends_at, allocation.extensions))
    return tuple(notes)


def way_of(allocation: Allocation, workers: Sequence[WorkerRow], now: float) -> tuple[NoteWay, ...]:
    """To look why a worker does not come, once it is late. Only where one is waited for."""
    is_missing = allocation.phase is Phase.GRANTED and len(workers) < allocation.nodes
    if not is_missing or allocation.granted_at is None or allocation.paused_since is not None:
        return ()
    if now - max(allocation.granted_at, allocation.resumed_at or 0.0) < _LATE_S:
        return ()
    return (NoteWay(missing_rank(allocation, workers)),)


def missing_rank(allocation: Allocation, workers: Sequence[WorkerRow]) -> int:
    """The first rank that has not connected: whose log may say why."""
    registered = {worker.rank for worker in workers}
    return next((rank for rank in range(allocation.nodes) if rank not in registered), 0)


def _says_more(allocation: Allocation, seen: Observation, now: float) -> bool:
    """Whether a person should read something else, or that an estimate still holds."""
    if (seen.waiting, seen.position) != (allocation.waiting, allocation.position):
        return True
    before, after = allocation.estimated_start, seen.estimated_start
    if before is None or after is None:
        return before is not after
    is_old = allocation.estimate_as_of is not None and now - allocation.estimate_as_of >= _ESTIMATE_OLD_S
    return is_old or abs(before - after) >= _ESTIMATE_MOVED_S
