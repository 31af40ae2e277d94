"""When a session's lease ends, and whether its person is to be warned: a pure decision over rows and the time.

Two clocks: idle, renewed by a person's execution or a keep, and absolute, renewed by nothing. They run once a kernel
is ready, so a queued one is never idle; what a kernel does that cannot be read is not taken for idleness.
It reads no clock, and refuses to know why something was active.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from .reasons import Reason


class Activity(enum.StrEnum):
    """What a kernel does, in its own words on its own channel. UNKNOWN: nobody could ask."""

    UNKNOWN = "unknown"
    IDLE = "idle"
    BUSY = "busy"


@dataclass(frozen=True)
class Lease:
    """One kernel's lease. Clocks in seconds, times in seconds since the Unix epoch."""

    workload_id: str
    kernel_id: str
    idle_ttl_s: float
    max_lifetime_s: float
    warn_s: float
    busy_counts: bool
    last_active_at: float
    activity: Activity = Activity.UNKNOWN
    started_at: float | None = None  # its kernel first became ready; None: it still waits
    idle_from: float | None = None  # it became ready in the present attempt
    warned_for: float | None = None  # the end that was announced
    held: bool = True  # its kernel was not given back


@dataclass(frozen=True)
class Deadline:
    """When the allocation goes, and which clock says so."""

    at: float
    reason: Reason
    length_s: float  # of the clock that runs out
    kernel_id: str

    @property
    def can_be_kept(self) -> bool:
        return self.reason is Reason.SESSION_IDLE_TIMEOUT

    @property
    def moment(self) -> str:
        """For a person, in this machine's time zone."""
        return datetime.fromtimestamp(self.at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")

    @property
    def sentence(self) -> str:
        if self.can_be_kept:
            return (
                f"This session is idle and will be released at {self.moment}. "
                f"Run a cell, or keep it: jupyter openai4s keep {self.kernel_id}"
            )
        return (
            f"This session reaches its longest allowed life at {self.moment} and will be released then. Save your work."
        )


@dataclass(frozen=True)
class Hold:
    """Nothing to do before `look_at`, unless something happens; None: nothing runs out."""

    look_at: float | None = None


@dataclass(frozen=True)
class Warn:
    """Tell the person of this end: once for each."""

    deadline: Deadline


@dataclass(frozen=True)
class TakeBack:
    """The announced end will not come."""


@dataclass(frozen=True)
class Expire:
    """The lease is over: wish the session stopped, with the reason of the clock."""

    deadline: Deadline


Step = Hold | Warn | TakeBack | Expire


def deadline_of(leases: Sequence[Lease]) -> Deadline | None:
    """When the allocation that holds these kernels goes, as far as is known now.

    Idle is all of them, so the last idle clock counts. The absolute clock is that of the first kernel, or starting
    further kernels would extend it.
    """
    started = [lease for lease in leases if lease.started_at is not None]
    if not any(lease.held for lease in leases) or not started:
        return None
    ends = [_absolute_end(lease) for lease in started]
    first = min(ends, key=lambda end: end.at)
    idle_ends = [_idle_end(lease) for lease in leases if lease.held]
    known = [end for end in idle_ends if end is not None]
    if len(known) < len(idle_ends):
        return first
    return min(first, max(known, key=lambda end: end.at), key=lambda end: end.at)


def ends_of(lease: Lease) -> tuple[Deadline | None, Deadline | None]:
    """When this kernel's idle clock and its absolute one run out, as far as is known now."""
    return _idle_end(lease), None if lease.started_at is None else _absolute_end(lease)


def decide(leases: Sequence[Lease], now: float) -> Step:
    """What is to be done for one session, whose leases these are."""
    deadline = deadline_of(leases)
    announced = next((lease.warned_for for lease in leases if lease.warned_for is not None), None)
    if deadline is None:
        return Hold() if announced is None else TakeBack()
    if now >= deadline.at:
        return Expire(deadline)
    warn_at = deadline.at - _warning_s(leases, deadline)
    if now < warn_at:
        return Hold(warn_at) if announced is None else TakeBack()
    return Hold(deadline.at) if announced == deadline.at else Warn(deadline)


def _warning_s(leases: Sequence[Lease], deadline: Deadline) -> float:
    """A warning longer than half of its clock would be shown to somebody who has just been active."""
    return min(max(lease.warn_s for lease in leases), deadline.length_s / 2)


def _absolute_end(lease: Lease) -> Deadline:
    assert lease.started_at is not None
    at = lease.started_at + lease.max_lifetime_s
    return Deadline(at, Reason.SESSION_MAX_LIFETIME_EXCEEDED, lease.max_lifetime_s, lease.kernel_id)


def _idle_end(lease: Lease) -> Deadline | None:
    if lease.idle_from is None or lease.activity is Activity.UNKNOWN:
        return None
    if lease.activity is Activity.BUSY and lease.busy_counts:
        return None
    at = max(lease.last_active_at, lease.idle_from) + lease.idle_ttl_s
    return Deadline(at, Reason.SESSION_IDLE_TIMEOUT, lease.idle_ttl_s, lease.kernel_id)
