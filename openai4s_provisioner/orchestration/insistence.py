"""A step that has to happen, repeated until the state takes it: a wish that nobody would state again.

A state file that is locked, or a disk that is full, passes. Only that is waited for; any other error is the caller's.
It says once that it waits, and has no deadline of its own: whoever has one cancels it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from .errors import StateError

_log = logging.getLogger(__name__)
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
T = TypeVar("T")


async def until_done(step: Callable[[], Awaitable[T]], what: str) -> T:
    """Call `step`, which must be safe to repeat, until it raises no StateError. `what` is not done so far, in words."""
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return await step()
        except StateError as error:
            if pause_s == _FIRST_PAUSE_S:
                _log.error("%s; it is tried again until it succeeds: %s", what, error)
        await asyncio.sleep(pause_s)
        pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
