"""When an allocation's own end is near: whether its person is to be warned, as a pure decision, and in which words.

The end is the backend's, not a lease's: no execution and no keep moves it, and only where the backend lets a person
extend an allocation can it be put off. It reads no clock, and it ends nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

MOVED_S = 5.0  # an end that a backend computes anew may be a little off; less than this is the same end


@dataclass(frozen=True)
class End:
    """The end of one running allocation. Times in seconds since the Unix epoch."""

    workload_id: str
    ends_at: float | None
    warned_for: float | None
    granted_at: float | None
    warn_s: float


@dataclass(frozen=True)
class Wait:
    """Nothing to do before `look_at`; None: no end is known, or it was announced."""

    look_at: float | None = None


@dataclass(frozen=True)
class WarnOfEnd:
    """Tell the person of this end: once for each."""

    ends_at: float


@dataclass(frozen=True)
class WithdrawWarning:
    """The announced end has moved away."""


EndStep = Wait | WarnOfEnd | WithdrawWarning


def decide(end: End, now: float) -> EndStep:
    """What is to be done for one allocation."""
    if end.ends_at is None:
        return Wait() if end.warned_for is None else WithdrawWarning()
    warn_at = end.ends_at - _warning_s(end, end.ends_at)
    if now < warn_at:
        return Wait(warn_at) if end.warned_for is None else WithdrawWarning()
    if end.warned_for is not None and not has_moved(end.warned_for, end.ends_at):
        return Wait()
    return WarnOfEnd(end.ends_at)


def most_extension_s(max_walltime_s: int, granted_at: float | None, ends_at: float | None) -> int:
    """By how much one that runs may be extended, as far as its profile is concerned; whole minutes, 0 = not at all.

    Its backend counts from its own clock and has the last word; a minute that has begun is left to it.
    """
    if granted_at is None or ends_at is None:
        return 0
    return max(0, int(max_walltime_s - (ends_at - granted_at)) // 60 * 60)


def has_moved(before: float | None, now: float | None) -> bool:
    """Whether these are two ends, and not one that was computed twice."""
    if before is None or now is None:
        return before is not now
    return abs(before - now) > MOVED_S


def _warning_s(end: End, ends_at: float) -> float:
    """A warning longer than half of the allocation's life would come with its beginning."""
    return end.warn_s if end.granted_at is None else min(end.warn_s, max(0.0, ends_at - end.granted_at) / 2)


class WalltimeState(enum.StrEnum):
    WARNING = "warning"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True)
class WalltimeNotice:
    """For a person: the allocation ends at this time, or later than was said."""

    workload_id: str
    state: WalltimeState
    ends_at: float | None = None
    seconds_left: float | None = None
    can_be_extended: bool = False

    @property
    def sentence(self) -> str:
        if self.state is WalltimeState.WITHDRAWN:
            later = "" if self.ends_at is None else f": this session now runs until {moment(self.ends_at)}"
            return f"The end that was announced has moved{later}."
        what = "Extend it, or save" if self.can_be_extended else "Save"
        return (
            f"This session reaches its time limit at {moment(self.ends_at or 0.0)} and ends then, whatever runs in it. "
            f"{what} your work."
        )

    def as_event(self, kernel_id: str) -> dict[str, Any]:
        """As the event schema ``walltime/v1`` has it."""
        ends = None if self.ends_at is None else datetime.fromtimestamp(self.ends_at, UTC).isoformat()
        return {
            "workload_id": self.workload_id,
            "kernel_id": kernel_id,
            "state": str(self.state),
            "ends_at": ends,
            "seconds_left": None if self.seconds_left is None else round(self.seconds_left, 3),
            "can_be_extended": self.can_be_extended,
            "sentence": self.sentence,
        }


def moment(at: float) -> str:
    """For a person, in this machine's time zone."""
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
