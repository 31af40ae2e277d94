"""BATCH workloads as rows, and what the command line lists. Functions for the store's thread."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import Refused
from ..models import CommandExit, Kind
from ..reasons import Reason
from . import rows
from .entries import NewBatch
from .rows import Situation
from .store import Store


@dataclass(frozen=True)
class Listed:
    """A workload, and how its command ended, if it has one that did."""

    now: Situation
    ended: CommandExit | None


def too_many(most: int) -> str:
    return (
        f"You already have as many commands waiting or running as are allowed at once ({most}, limits.max_batches). "
        "Wait for one, or stop one."
    )


def open_batch(store: Store, new: NewBatch, daemon_id: str, now: float) -> None:
    """Workload and first attempt with its token, in one commit. Raises Refused(QUOTA_EXCEEDED), counted inside."""
    with store.db.transaction():
        if active(store, new.owner) >= new.max_batches:
            raise Refused(Reason.QUOTA_EXCEEDED, too_many(new.max_batches))
        store.open_workload(new, Kind.BATCH, daemon_id, now)


def active(store: Store, owner: str) -> int:
    found = store.db.row("active_batches", owner=owner)
    return int(found[0]) if found is not None else 0


def record_exit(store: Store, allocation_id: str, ended: CommandExit) -> None:
    """The first record stays."""
    store.db.write(
        "insert_command_exit",
        allocation_id=allocation_id,
        exit_code=ended.exit_code,
        exit_signal=ended.signal,
        started_at=ended.started_at,
        ended_at=ended.ended_at,
        asked=ended.asked,
        reason=ended.reason,
        detail=ended.detail,
    )


def listed(store: Store, workload_id: str) -> Listed | None:
    now = store.situation(workload_id)
    if now is None:
        return None
    found = store.db.row("command_exit", allocation_id=now.allocation.allocation_id)
    return Listed(now, None if found is None else rows.command_exit_from(found))


def listing(store: Store, since: float, everything: bool, most: int) -> list[Listed]:
    """What is active, and commands that ended after `since`; or everything. The newest first."""
    found = store.db.rows("workloads", since=since, everything=everything, most=most)
    return [entry for row in found if (entry := listed(store, row["workload_id"])) is not None]


def named(store: Store, beginning: str) -> list[str]:
    """The workloads whose id begins so; at most ten."""
    return [row["workload_id"] for row in store.db.rows("workloads_named", beginning=beginning)]
