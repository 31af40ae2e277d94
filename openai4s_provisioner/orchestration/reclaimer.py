"""The reclaimer: gives idle and outlived sessions back, after a warning. A level-triggered loop beside the reconciler.

It reads leases and states an intent, with the reason of the clock that ran out; the reconciler acts on it. It never
writes `last_active_at`, never ends a kernel itself, and a session that cannot be looked at now is looked at again.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .daemons import Daemon
from .due_loop import DueLoop
from .leases import Deadline, Expire, Hold, Step, Warn, decide
from .reasons import Reason
from .steady_clock import steady_time
from .store import StoreThread, leases

_log = logging.getLogger(__name__)


class LeaseState(enum.StrEnum):
    """What a person is told of a lease. That it has ended is told as the end of the session."""

    WARNING = "warning"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True)
class LeaseNotice:
    """For a person: the session will be released at this time, or no longer will."""

    workload_id: str
    state: LeaseState
    sentence: str
    reason: Reason | None = None
    ends_at: float | None = None
    seconds_left: float | None = None
    can_be_kept: bool = False

    def as_event(self, kernel_id: str) -> dict[str, Any]:
        """As the event schema ``lease/v1`` has it."""
        ends = None if self.ends_at is None else datetime.fromtimestamp(self.ends_at, UTC).isoformat()
        return {
            "workload_id": self.workload_id,
            "kernel_id": kernel_id,
            "state": str(self.state),
            "reason": None if self.reason is None else str(self.reason),
            "ends_at": ends,
            "seconds_left": None if self.seconds_left is None else round(self.seconds_left, 3),
            "can_be_kept": self.can_be_kept,
            "sentence": self.sentence,
        }


class Reclaimer:
    """Its `loop` is to be poked when an announced end may no longer come.

    `announce` hears of a session that was wished stopped, `notify` what a person is to be told.
    """

    def __init__(
        self,
        *,
        store: StoreThread,
        daemon: Daemon,
        period_s: float,
        announce: Callable[[str], None],
        notify: Callable[[LeaseNotice], None],
        clock: Callable[[], float] = steady_time,
    ) -> None:
        self._store = store
        self._daemon = daemon
        self._announce = announce
        self._notify = notify
        self._clock = clock
        self.loop = DueLoop(self.turn, period_s, clock, "the reclaimer")

    async def turn(self) -> float | None:
        """Look at every session once. When the next clock runs out, if one is known; changes nothing otherwise."""
        if not self._daemon.has_work.is_set():
            return None
        now = self._clock()
        times = []
        for group in await self._store.run(leases.running, self._daemon.daemon_id):
            step = decide(group, now)
            if not isinstance(step, Hold):
                step = await self._settle(group[0].workload_id)
            if isinstance(step, Hold) and step.look_at is not None:
                times.append(step.look_at)
        return min(times, default=None)

    async def _settle(self, workload_id: str) -> Step:
        """One session's step, written and told; then what comes next for it."""
        try:
            while True:
                now = self._clock()
                step = await self._store.run(leases.sweep, workload_id, now)
                if isinstance(step, Hold):
                    return step
                self._tell(workload_id, step, now)
                if isinstance(step, Expire):
                    return step
        except Exception:
            _log.exception("the lease of session %s could not be looked at; the next turn tries again", workload_id)
            return Hold()

    def _tell(self, workload_id: str, step: Step, now: float) -> None:
        if isinstance(step, Expire):
            _log.info("session %s is released: %s", workload_id, step.deadline.reason)
            self._announce(workload_id)
            return
        notice = (
            _warning(workload_id, step.deadline, now)
            if isinstance(step, Warn)
            else LeaseNotice(workload_id, LeaseState.WITHDRAWN, "This session will not be released for now.")
        )
        self._notify(notice)


def _warning(workload_id: str, deadline: Deadline, now: float) -> LeaseNotice:
    return LeaseNotice(
        workload_id,
        LeaseState.WARNING,
        deadline.sentence,
        deadline.reason,
        deadline.at,
        deadline.at - now,
        deadline.can_be_kept,
    )
