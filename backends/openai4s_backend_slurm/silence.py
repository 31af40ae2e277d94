"""Says once that a cluster does not answer, and once that it does again, however often it was asked in between.

A controller that is away for hours is no news every five seconds, and sessions go on without it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Silence:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}

    def refused(self, cluster: str, why: str) -> None:
        if cluster not in self._since:
            self._since[cluster] = self._clock()
            _log.warning(
                "The queue%s cannot be asked: %s. Sessions that run go on; whatever else is wished waits for it.",
                f" of cluster {cluster}" if cluster else "",
                why,
            )

    def answered(self, cluster: str) -> None:
        since = self._since.pop(cluster, None)
        if since is not None:
            _log.warning(
                "The queue%s answers again, after %.0f s.",
                f" of cluster {cluster}" if cluster else "",
                self._clock() - since,
            )
