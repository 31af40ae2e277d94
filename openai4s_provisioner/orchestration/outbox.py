"""Control messages to workers, kept while a worker has not dialled in yet, and sent in order when it has.

Holds launches, hence secrets: in memory only (INV-9). What a known worker cannot be handed is the tunnel's to keep.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from .ports import WorkerChannel

_log = logging.getLogger(__name__)
_MAX_WAITING = 256


class Outbox:
    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel
        self._waiting: dict[tuple[str, int], list[Mapping[str, Any]]] = {}

    def send(self, allocation_id: str, rank: int, message: Mapping[str, Any]) -> bool:
        """Hand over now, or keep until the worker is there. True when it was handed over."""
        self.flush(allocation_id, rank)
        if (allocation_id, rank) not in self._waiting and self._channel.send(allocation_id, rank, message):
            return True
        kept = self._waiting.setdefault((allocation_id, rank), [])
        if len(kept) >= _MAX_WAITING:
            _log.error("dropped a %s message for a worker that is not there", message.get("type"))
            return False
        kept.append(message)
        return False

    def send_if_known(self, allocation_id: str, rank: int, message: Mapping[str, Any]) -> bool:
        """Hand over now or not at all."""
        return self._channel.send(allocation_id, rank, message)

    def flush(self, allocation_id: str, rank: int) -> None:
        """The worker is there: send what waited, in order."""
        kept = self._waiting.pop((allocation_id, rank), [])
        for position, message in enumerate(kept):
            if not self._channel.send(allocation_id, rank, message):
                self._waiting[allocation_id, rank] = kept[position:]
                return

    def hold(self, allocation_id: str, is_paused: bool) -> None:
        """Whether its links stay however long they are silent."""
        self._channel.hold(allocation_id, is_paused)

    def forget(self, allocation_id: str) -> None:
        """The allocation is over: drop what waited and close its links."""
        for key in [key for key in self._waiting if key[0] == allocation_id]:
            del self._waiting[key]
        self._channel.forget(allocation_id)
