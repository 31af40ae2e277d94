"""Who waits for news of a workload, and how they are woken. One event loop; holds no state of the workload itself.

A waiter takes its ticket first and reads the rows after, so that a change in between is not missed.
"""

from __future__ import annotations

import asyncio


class ChangeBoard:
    def __init__(self) -> None:
        self._tickets: dict[str, asyncio.Event] = {}

    def ticket(self, workload_id: str) -> asyncio.Event:
        """An event that is set at the next change of this workload, and only once."""
        return self._tickets.setdefault(workload_id, asyncio.Event())

    def announce(self, workload_id: str) -> None:
        ticket = self._tickets.pop(workload_id, None)
        if ticket is not None:
            ticket.set()
