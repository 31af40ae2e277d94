"""Ends tasks of the loop, for good.

Cancelling once is not enough: in Python 3.11 `asyncio.wait_for` drops a cancellation that comes at the moment at which
what it waits for is done. A loop around it then goes on for ever, and so does whoever waits for the end of that loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

_AGAIN_S = 0.5


async def ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel them until they have ended. What they raise is dropped."""
    tasks = tuple(tasks)
    left = {each for each in tasks if not each.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)
