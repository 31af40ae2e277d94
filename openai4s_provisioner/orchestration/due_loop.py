"""A loop that takes its turn when it is poked, when something is due, and at the latest after its period.

What a turn does is its owner's, and so is what it logs about one of many; a turn that fails is logged here and taken
again. It decides nothing and knows no store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from .cancelling import ended

_log = logging.getLogger(__name__)
_SHORTEST_PAUSE_S = 0.02


class DueLoop:
    """`turn` answers when the next thing is due, if one is, on `clock`; `about` names the turn in the log."""

    def __init__(
        self, turn: Callable[[], Awaitable[float | None]], period_s: float, clock: Callable[[], float], about: str
    ) -> None:
        self._turn = turn
        self._period_s = period_s
        self._clock = clock
        self._about = about
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Idempotent; a turn under way is given up."""
        task, self._task = self._task, None
        if task is not None:
            await ended([task])

    def poke(self) -> None:
        """Take a turn now. On the loop's thread."""
        self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()  # before the turn: what happens while it looks is looked at again
            pause = self._period_s
            try:
                due = await self._turn()
                if due is not None:
                    pause = max(_SHORTEST_PAUSE_S, min(pause, due - self._clock()))
            except Exception:
                _log.exception("a turn of %s failed; the next one tries again", self._about)
            try:
                await asyncio.wait_for(self._wake.wait(), pause)
            except TimeoutError:
                continue
