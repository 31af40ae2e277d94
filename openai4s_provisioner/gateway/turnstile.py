"""One step of costly work per turn of the loop: a TLS handshake takes a millisecond, and sixty at once would be felt.

Between two steps the loop serves every descriptor that is ready, so sessions in progress wait for one step at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..transport.loop import Loop


class Turnstile:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()

    def queue(self, step: Callable[[], None]) -> None:
        """Run it in a turn of its own. A step that is no longer wanted has to see that by itself."""
        self._waiting.append(step)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        step = self._waiting.popleft()
        if self._waiting:
            self._loop.call_soon(self._next)
        step()
