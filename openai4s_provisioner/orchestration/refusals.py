"""What the front desk turned away: counted always, written down when it is the 1st, 10th, 100th ... of its kind.

So a flood of refusals grows neither the store nor the log, and it can still be read how many there were and since when.
Only an attempt whose credential is genuine is counted by name; everything else counts together. Judges nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from .bootstrap import Claims
from .moments import clock_time, is_round
from .reasons import Reason

_MOST_KINDS = 1024


@dataclass(frozen=True)
class Refusal:
    """One kind of refusal, and how often it was met. `claims` None: nothing of the credential could be believed."""

    reason: Reason
    why: str
    claims: Claims | None
    count: int
    first_at: float
    last_at: float

    @property
    def is_to_be_recorded(self) -> bool:
        return is_round(self.count)

    @property
    def sentence(self) -> str:
        who = "" if self.claims is None else f"worker {self.claims.rank} of attempt {self.claims.epoch}: "
        often = "" if self.count == 1 else f" ({self.count} times since {clock_time(self.first_at)})"
        return f"{who}{self.why}{often}"


class Refusals:
    """May be used from any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._met: OrderedDict[tuple[str, int, Reason, str], Refusal] = OrderedDict()

    def note(self, reason: Reason, why: str, claims: Claims | None, now: float) -> Refusal:
        """Count one; the kind that it belongs to, as it is now."""
        key = ("", -1, reason, why) if claims is None else (claims.allocation_id, claims.rank, reason, why)
        with self._guard:
            before = self._met.pop(key, None)
            count, first_at = (1, now) if before is None else (before.count + 1, before.first_at)
            self._met[key] = Refusal(reason, why, claims, count, first_at, now)
            while len(self._met) > _MOST_KINDS:
                self._met.popitem(last=False)
            return self._met[key]

    def told(self, allocation_id: str, since: float) -> str:
        """What a person should know when the workers of this attempt did not come: who was turned away, and why."""
        with self._guard:
            met = [each for each in self._met.values() if _concerns(each, allocation_id, since)]
        return f"Turned away: {'; '.join(each.sentence for each in met)}." if met else ""


def _concerns(each: Refusal, allocation_id: str, since: float) -> bool:
    """A credential that nobody could believe may have been that of any attempt which was awaited at the time."""
    return each.last_at >= since if each.claims is None else each.claims.allocation_id == allocation_id
