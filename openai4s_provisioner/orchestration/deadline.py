"""A call that must not hold anybody up for longer than its deadline. Nothing here knows what is being called."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from .errors import CouldNotAsk

T = TypeVar("T")


async def bounded(call: Coroutine[Any, Any, T], seconds: float) -> T:
    """Await a call for at most so long; then CouldNotAsk. It is not waited for even if it resists being cancelled."""
    task = asyncio.ensure_future(call)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        task.add_done_callback(_ignore_outcome)
        raise CouldNotAsk(f"no answer within {seconds:g} s")
    return task.result()


def _ignore_outcome(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
