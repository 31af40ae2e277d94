"""What is started again after its allocation was lost, and what is not: one total table over the reasons.

Recovery is a new epoch with a new token (INV-6, INV-7), at most three times in a workload's life, each after a longer
pause. What ended by a decision, a limit or a fault of its own is final: starting it again is for a person. Pure.
"""

from __future__ import annotations

import enum

from .reasons import Reason

MAX_RECOVERIES = 3
_LONGER = 4  # each pause is so many times the one before


class Outcome(enum.Enum):
    RECOVER = "recover"
    FINAL = "final"


OUTCOMES: dict[Reason, Outcome] = dict.fromkeys(Reason, Outcome.FINAL) | {
    Reason.NODE_FAILED: Outcome.RECOVER,
    Reason.PREEMPTED: Outcome.RECOVER,
    Reason.WORKER_LOST: Outcome.RECOVER,
}


def may_recover(reason: Reason | None, epoch: int) -> bool:
    """Whether an attempt of this epoch that ended for `reason` may be followed by another one."""
    return reason is not None and OUTCOMES[reason] is Outcome.RECOVER and epoch <= MAX_RECOVERIES


def pause_s(epoch: int, first_pause_s: float) -> float:
    """How long the attempt of this epoch waits before it is submitted; nothing for the first."""
    return 0.0 if epoch <= 1 else first_pause_s * _LONGER ** (epoch - 2)
