"""Leases as rows. Functions for the store's thread; `orchestration.leases` decides, inside the commit that writes.

The one who sweeps decides again on what the commit reads: a keep that came first has won, and one that comes later
finds the wish written. Nothing here but a worker's report of activity and a keep writes `last_active_at`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from ..errors import Refused, SessionEnded
from ..leases import Activity, Deadline, Expire, Hold, Lease, Step, TakeBack, Warn, deadline_of, decide
from ..reasons import Reason
from .store import Store

ACTOR = "lease"

__all__ = [
    "Activity",
    "Deadline",
    "Expire",
    "Kept",
    "Lease",
    "activity",
    "decide",
    "held_kernels",
    "keep",
    "of_workload",
    "running",
    "sweep",
]


@dataclass(frozen=True)
class Kept:
    """A keep that counted. `until` None: nothing runs out at present."""

    kernel_id: str
    workload_id: str
    until: Deadline | None

    @property
    def sentence(self) -> str:
        if self.until is None:
            return "kept; no clock runs out at present"
        if self.until.can_be_kept:
            return f"kept until {self.until.moment}"
        return f"kept, but its longest allowed life ends at {self.until.moment}"


def running(store: Store, daemon_id: str) -> list[list[Lease]]:
    """The leases of every session of this process that a clock may run out for, session by session."""
    found = map(_lease_from, store.db.rows("running_leases", daemon_id=daemon_id))
    return [list(group) for _, group in groupby(found, key=lambda lease: lease.workload_id)]


def sweep(store: Store, workload_id: str, now: float) -> Step:
    """Decide and write in one commit: the announced end, or the wish to stop. What was done."""
    with store.db.transaction():
        step = decide(of_workload(store, workload_id), now)
        if isinstance(step, Hold):
            return step
        warned_for = None if isinstance(step, TakeBack) else step.deadline.at
        store.db.write("set_warned", workload_id=workload_id, warned_for=warned_for)
        if isinstance(step, Expire):
            store.wish_stopped(workload_id, step.deadline.reason, f"It ended at {step.deadline.moment}.", ACTOR, now)
        elif isinstance(step, Warn):
            store.note(workload_id, "lease_warning", ACTOR, step.deadline.reason, step.deadline.moment, now)
        else:
            store.note(workload_id, "lease_warning_withdrawn", ACTOR, None, "", now)
        return step


def activity(store: Store, launch_id: str, doing: Activity, began: bool, now: float) -> bool:
    """A kernel's own word. `began`: a person's execution began since the last word. True: an end was announced."""
    with store.db.transaction():
        names = {"launch_id": launch_id, "activity": doing, "began": began, "now": now}
        return any(row["warned_for"] is not None for row in store.db.rows("note_activity", **names))


def keep(store: Store, kernel_id: str, actor: str, now: float) -> Kept:
    """Renew the idle clock. Raises Refused for a kernel nobody holds, SessionEnded when the lease has run out."""
    with store.db.transaction():
        workload_id = store.workload_of_kernel(kernel_id)
        workload = None if workload_id is None else store.workload(workload_id)
        if workload is None:
            raise Refused(
                Reason.INVALID_SPEC, f"No session holds the kernel {kernel_id!r}. Name one that runs, or say 'all'."
            )
        if store.db.write("keep_lease", workload_id=workload.workload_id, kernel_id=kernel_id, now=now) == 0:
            reason = workload.reason or Reason.USER_CANCELLED
            raise SessionEnded(reason, f"It is too late to keep the kernel {kernel_id}: {reason.sentence}")
        store.note(workload.workload_id, "kept", actor, None, kernel_id, now)
        return Kept(kernel_id, workload.workload_id, deadline_of(of_workload(store, workload.workload_id)))


def held_kernels(store: Store) -> list[str]:
    """Every kernel whose session is wanted, whichever process drives it."""
    return [row["kernel_id"] for row in store.db.rows("held_kernels")]


def of_workload(store: Store, workload_id: str) -> list[Lease]:
    return _leases_from(store.db.rows("leases_of", workload_id=workload_id))


def _leases_from(found: Iterable[sqlite3.Row]) -> list[Lease]:
    return [_lease_from(row) for row in found]


def _lease_from(row: sqlite3.Row) -> Lease:
    return Lease(
        workload_id=row["workload_id"],
        kernel_id=row["kernel_id"],
        idle_ttl_s=row["idle_ttl_s"],
        max_lifetime_s=row["max_lifetime_s"],
        warn_s=row["warn_s"],
        busy_counts=bool(row["busy_counts"]),
        last_active_at=row["last_active_at"],
        activity=_activity(row),
        started_at=row["started_at"],
        idle_from=row["idle_from"],
        warned_for=row["warned_for"],
        held=row["released_at"] is None,
    )


def _activity(row: sqlite3.Row) -> Activity:
    """A step beside an idle kernel is work like a cell. What an unknown kernel does stays unknown."""
    own = Activity(row["activity"])
    return Activity.BUSY if own is Activity.IDLE and row["runs_task"] else own
