"""The time of this process: the system's clock when the process began, and steady from then on.

Deadlines are compared with stored times, which must be comparable between processes; a system clock that is set
forward, or a laptop that slept, would make them all run out at once. It does not follow later corrections.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class SteadyClock:
    """Seconds since the Unix epoch."""

    def __init__(self, system: Callable[[], float] = time.time, running: Callable[[], float] = time.monotonic) -> None:
        self._running = running
        self._offset = system() - running()

    def __call__(self) -> float:
        return self._offset + self._running()


steady_time = SteadyClock()
