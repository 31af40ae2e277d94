"""When allocations are expected to begin and end, as rows. Functions for the store's thread.

Of a warning, `orchestration.walltime` decides inside the commit that writes, so that an extension that came first is
seen. What is written here moves no phase.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..models import Allocation, Desired, Phase
from ..walltime import End, EndStep, Wait, WarnOfEnd, decide
from . import rows
from .entries import Queued
from .store import Store

ACTOR = "walltime"
_MAX_WORDS = 8192
_RUNNING = (Phase.GRANTED, Phase.ACTIVE)


def running(store: Store, daemon_id: str) -> Mapping[str, str]:
    """Sessions of this process that have an end, or were warned of one, with their profile."""
    return {row["workload_id"]: row["profile"] for row in store.db.rows("running_ends", daemon_id=daemon_id)}


def sweep(store: Store, workload_id: str, warn_s: float, now: float) -> tuple[EndStep, End | None]:
    """Decide and write in one commit. What was done, on which end."""
    with store.db.transaction():
        workload = rows.workload_from(store.db.rows("workload", workload_id=workload_id)[0])
        allocation = rows.allocation_from(store.db.rows("newest_allocation", workload_id=workload_id)[0])
        if workload.desired is Desired.STOPPED or allocation.phase not in _RUNNING:
            return Wait(), None
        end = _end_of(allocation, warn_s)
        step = decide(end, now)
        if isinstance(step, Wait):
            return step, end
        warned_for = step.ends_at if isinstance(step, WarnOfEnd) else None
        store.db.write("set_end_warned", allocation_id=allocation.allocation_id, warned_for=warned_for)
        kind = "walltime_warning" if isinstance(step, WarnOfEnd) else "walltime_warning_withdrawn"
        store.note(workload_id, kind, ACTOR, None, "", now)
        return step, end


def note_queued(store: Store, allocation_id: str, queued: Queued, now: float) -> None:
    """What the backend says of one that waits."""
    store.db.write(
        "set_waiting",
        allocation_id=allocation_id,
        waiting=queued.waiting[:_MAX_WORDS],
        backend_detail=queued.backend_detail[-_MAX_WORDS:],
        estimated_start=queued.estimated_start,
        position=queued.position,
        now=now,
    )


def note_pause(store: Store, allocation: Allocation, is_paused: bool, now: float) -> None:
    """The site has paused it, or lets it go on: who is silent in between is not late."""
    with store.db.transaction():
        store.db.write("set_paused" if is_paused else "set_resumed", allocation_id=allocation.allocation_id, now=now)
        store.note(allocation.workload_id, "paused" if is_paused else "resumed", "the site", None, "", now)


def note_way(store: Store, allocation_id: str, waiting: str) -> None:
    """Why a worker of an allocation that runs does not come; "" takes it back."""
    store.db.write("set_way", allocation_id=allocation_id, waiting=waiting[:_MAX_WORDS])


def note_end(store: Store, allocation_id: str, ends_at: float, extensions: int) -> None:
    """The backend's word, which it was asked for after so many extensions; nothing, if there are more by now."""
    store.db.write("set_ends_at", allocation_id=allocation_id, ends_at=ends_at, extensions=extensions)


def extended(store: Store, allocation: Allocation, ends_at: float, seconds: int, actor: str, now: float) -> None:
    """A person's wish that the backend fulfilled: the new end, and who asked for it."""
    with store.db.transaction():
        store.db.write("put_end_off", allocation_id=allocation.allocation_id, ends_at=ends_at)
        store.note(allocation.workload_id, "extended", actor, None, f"by {seconds} s", now)


def _end_of(allocation: Allocation, warn_s: float) -> End:
    return End(allocation.workload_id, allocation.ends_at, allocation.end_warned_for, allocation.granted_at, warn_s)


def take_submission_back(store: Store, allocation_id: str, queued: Queued) -> None:
    """Nothing was sent after all: its fate is as known as before, and it counts for no attempt."""
    store.db.write(
        "take_submission_back",
        allocation_id=allocation_id,
        waiting=queued.waiting[:_MAX_WORDS],
        backend_detail=queued.backend_detail[:_MAX_WORDS],
    )
