"""Warns of allocations' own ends, once for each: a level-triggered loop beside the reclaimer.

It reads what the reconciler has written down of the backend's word, and writes only which end was announced. It ends
nothing: that is the backend's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from .config import SiteConfig
from .daemons import Daemon
from .due_loop import DueLoop
from .models import LeasePolicy
from .store import StoreThread, schedule
from .walltime import EndStep, Wait, WalltimeNotice, WalltimeState, WarnOfEnd

_log = logging.getLogger(__name__)


class WalltimeWatch:
    """Its `loop` is to be poked when an end has moved.

    `can_extend` says of a profile whether a person may put an end off; `notify` is told what to tell a person.
    """

    def __init__(
        self,
        *,
        store: StoreThread,
        daemon: Daemon,
        config: SiteConfig,
        can_extend: Callable[[str], bool],
        notify: Callable[[WalltimeNotice], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock`: an end is a time of the backend's, so it is compared with the system's clock as it is now."""
        self._store = store
        self._daemon = daemon
        self._config = config
        self._can_extend = can_extend
        self._notify = notify
        self._clock = clock
        self.loop = DueLoop(self.turn, config.policy.period_s, clock, "the watch over allocations' ends")

    async def turn(self) -> float | None:
        """Look at every session once. When the next warning is due, if one is."""
        if not self._daemon.has_work.is_set():
            return None
        found = await self._store.run(schedule.running, self._daemon.daemon_id)
        times = [await self._looked_at(workload_id, profile) for workload_id, profile in found.items()]
        return min((at for at in times if at is not None), default=None)

    async def _looked_at(self, workload_id: str, profile: str) -> float | None:
        """One session's failure is no other's."""
        try:
            return await self._settle(workload_id, profile)
        except Exception:
            _log.exception("the end of session %s could not be looked at; the next turn tries again", workload_id)
            return None

    async def _settle(self, workload_id: str, profile: str) -> float | None:
        """One session's steps, written and told; then when to look again."""
        while True:
            now = self._clock()
            step, end = await self._store.run(schedule.sweep, workload_id, self._warn_s(profile), now)
            if isinstance(step, Wait):
                return step.look_at
            ends_at = None if end is None else end.ends_at
            self._notify(self._notice(workload_id, profile, step, ends_at, now))

    def _notice(
        self, workload_id: str, profile: str, step: EndStep, ends_at: float | None, now: float
    ) -> WalltimeNotice:
        state = WalltimeState.WARNING if isinstance(step, WarnOfEnd) else WalltimeState.WITHDRAWN
        left = None if ends_at is None else ends_at - now
        return WalltimeNotice(workload_id, state, ends_at, left, self._can_extend(profile))

    def _warn_s(self, profile: str) -> float:
        known = self._config.profiles.get(profile)
        return float((LeasePolicy() if known is None else known.leases).warn_s)
