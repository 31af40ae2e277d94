"""A look at a file system that may never answer: in a thread of its own, for as long as its caller waits and no longer.

Neither the loop nor the pool that others share is held up by a network folder that hangs. A look that was given up
goes on in its thread until the system lets go of it; there is a bound on how many may hang at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from .errors import CouldNotAsk

MOST_AT_ONCE = 8
_places = threading.BoundedSemaphore(MOST_AT_ONCE)
T = TypeVar("T")


async def looked_at(look: Callable[[], T], seconds: float) -> T:
    """What `look()` returns or raises. Raises CouldNotAsk after so long, or while too many others hang."""
    if not _places.acquire(blocking=False):
        raise CouldNotAsk(f"{MOST_AT_ONCE} looks at folders have not ended yet")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if answer.done():  # nobody waits any more
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = look()
        except BaseException as error:
            failure = error
        finally:
            _places.release()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="openai4s-look", daemon=True).start()
    try:
        done, _ = await asyncio.wait({answer}, timeout=seconds)
    except asyncio.CancelledError:
        answer.cancel()
        raise
    if not done:
        answer.cancel()
        raise CouldNotAsk(f"no answer within {seconds:g} s")
    return answer.result()
