"""Workloads as a person sees them: what is open, and what ended lately. Functions for the store's thread.

Reads only, and only what belongs to one owner.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..leases import Lease
from ..models import CommandExit
from . import batches, leases
from .rows import Situation
from .store import Store


@dataclass(frozen=True)
class Seen:
    """All that is known of one workload. `ended`: how its command ended, if it is one that did."""

    now: Situation
    leases: tuple[Lease, ...] = ()
    ended: CommandExit | None = None


def seen(store: Store, workload_id: str) -> Seen | None:
    """None for one that never was."""
    listed = batches.listed(store, workload_id)
    if listed is None:
        return None
    return Seen(listed.now, tuple(leases.of_workload(store, workload_id)), listed.ended)


def seen_of(store: Store, owner: str, since: float, most: int) -> list[Seen]:
    """Every open workload of `owner`, and those that ended after `since`; the newest first, at most `most`."""
    found = store.db.rows("seen_of", owner=owner, since=since, most=most)
    return [entry for row in found if (entry := seen(store, row["workload_id"])) is not None]


def open_ones(store: Store, owner: str) -> int:
    """How many workloads of `owner` are not over."""
    found = store.db.row("open_of", owner=owner)
    return 0 if found is None else int(found[0])
