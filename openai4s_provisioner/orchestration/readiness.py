"""When a session counts as started: four conditions, of which the first missing one is named (INV-5).

Values only. Everywhere a person may look, the words come from here.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass


class Condition(enum.StrEnum):
    """The four conditions of readiness, in the order in which they are named to a person (INV-5)."""

    ALLOCATION_GRANTED = "allocation_granted"
    WORKER_REGISTERED = "worker_registered"
    WORKSPACE_READY = "workspace_ready"
    KERNEL_READY = "kernel_ready"


@dataclass(frozen=True)
class Queue:
    """What an allocation that was not granted yet waits for. Times in seconds since the Unix epoch."""

    waiting: str = ""
    position: int | None = None
    estimated_start: float | None = None
    as_of: float | None = None

    @property
    def words(self) -> str:
        """For a person, in this machine's time zone: why, where in the queue, and until when as far as is known."""
        parts = [self.waiting] if self.waiting else []
        if self.position is not None:
            parts.append(f"position {self.position}")
        if self.estimated_start is not None:
            since = self.estimated_start if self.as_of is None else self.as_of
            told = "" if self.as_of is None else f", as of {time.strftime('%H:%M', time.localtime(since))}"
            parts.append(f"estimated {_moment(self.estimated_start, since)}{told}")
        return "; ".join(parts)


def _moment(at: float, now: float) -> str:
    """The time of day, with the day where it is not today's."""
    then, today = time.localtime(at), time.localtime(now)
    return time.strftime("%H:%M" if then[:3] == today[:3] else "%Y-%m-%d %H:%M", then)


@dataclass(frozen=True)
class Readiness:
    """INV-5: ready is a conjunction, and the first missing condition is named with numbers."""

    granted: bool
    workers: int
    workspaces: int
    ranks: int
    kernel: bool
    detail: str = ""  # the waiting reason in our words, or what was wrong with a workspace

    @property
    def missing(self) -> Condition | None:
        if not self.granted:
            return Condition.ALLOCATION_GRANTED
        if self.workers < self.ranks:
            return Condition.WORKER_REGISTERED
        if self.workspaces < self.ranks:
            return Condition.WORKSPACE_READY
        if not self.kernel:
            return Condition.KERNEL_READY
        return None

    @property
    def is_ready(self) -> bool:
        return self.missing is None

    @property
    def met(self) -> int:
        """How many of the four conditions hold, counted in order."""
        missing = self.missing
        return 4 if missing is None else list(Condition).index(missing)

    def counts(self, condition: Condition) -> tuple[int, int]:
        """How many there are, and how many are needed."""
        return {
            Condition.ALLOCATION_GRANTED: (int(self.granted), 1),
            Condition.WORKER_REGISTERED: (min(self.workers, self.ranks), self.ranks),
            Condition.WORKSPACE_READY: (min(self.workspaces, self.ranks), self.ranks),
            Condition.KERNEL_READY: (int(self.kernel), 1),
        }[condition]

    def sentence_of(self, condition: Condition) -> str:
        """For a person: what this one condition waits for, or that it holds."""
        have, want = self.counts(condition)
        if have >= want:
            return _HOLDS[condition]
        waits = {
            Condition.ALLOCATION_GRANTED: "waiting for the allocation",
            Condition.WORKER_REGISTERED: f"waiting for the worker, {have} of {want} connected",
            Condition.WORKSPACE_READY: f"waiting for the workspace, {have} of {want} ready",
            Condition.KERNEL_READY: "waiting for the kernel to answer",
        }
        return waits[condition]

    @property
    def sentence(self) -> str:
        """For a person: how many conditions hold, and what is waited for."""
        missing = self.missing
        if missing is None:
            return "4 of 4 conditions: the kernel is ready"
        told = f"{self.met} of 4 conditions: {self.sentence_of(missing)}"
        return f"{told} ({self.detail})" if self.detail else told


_HOLDS = {
    Condition.ALLOCATION_GRANTED: "the allocation is granted",
    Condition.WORKER_REGISTERED: "every worker is connected",
    Condition.WORKSPACE_READY: "the workspace is ready",
    Condition.KERNEL_READY: "the kernel has answered",
}
