"""One question for the whole queue, shared by all who want to know at the same time.

An answer is never older than the question it answers: whoever asks while one is under way gets the next one. However
many sessions there are, a controller is asked at most once in `min_interval_s`. Used from one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from .parse import QueueRow

Ask = Callable[[str], Awaitable[Sequence[QueueRow]]]


class SharedQueue:
    def __init__(self, ask: Ask, min_interval_s: float) -> None:
        """`ask`: the rows of one cluster. Its exceptions go to everybody who waits for that answer."""
        self._ask = ask
        self._min_interval_s = min_interval_s
        self._waiting: dict[str, asyncio.Task[Sequence[QueueRow]]] = {}
        self._running: dict[str, asyncio.Task[Sequence[QueueRow]]] = {}
        self._began: dict[str, float] = {}

    async def rows(self, cluster: str) -> Sequence[QueueRow]:
        task = self._waiting.get(cluster)
        if task is None:
            task = self._waiting[cluster] = asyncio.create_task(self._turn(cluster))
        return await asyncio.shield(task)  # one caller that gives up does not take the answer from the others

    async def close(self) -> None:
        for task in [*self._waiting.values(), *self._running.values()]:
            task.cancel()

    async def _turn(self, cluster: str) -> Sequence[QueueRow]:
        loop = asyncio.get_running_loop()
        before = self._running.get(cluster)
        if before is not None:
            await asyncio.wait([before])
        await asyncio.sleep(max(0.0, self._began.get(cluster, -1e9) + self._min_interval_s - loop.time()))
        mine = self._running[cluster] = self._waiting.pop(cluster)
        self._began[cluster] = loop.time()
        try:
            return await self._ask(cluster)
        finally:
            if self._running.get(cluster) is mine:
                del self._running[cluster]
