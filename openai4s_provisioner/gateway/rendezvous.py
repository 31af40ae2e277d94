"""Where workers and those who wait for them meet: pure bookkeeping, the clock is passed in.

A worker that arrives is parked until a wait that expects it is complete. A wait answers with everyone expected, or,
when its time is up, with a copy of who came so far, who stay parked. A worker that nobody collects for a while is a
suspect: the owner asks the control plane about it and then calls `keep` or `drop`. Nothing here closes a connection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple


class Place(NamedTuple):
    allocation_id: str
    epoch: int
    rank: int


@dataclass(frozen=True)
class Arrival:
    place: Place
    host: str
    generation: str


@dataclass(frozen=True)
class Gathering:
    """The answer to a wait: who came, by rank."""

    allocation_id: str
    epoch: int
    ranks: int
    present: tuple[Arrival, ...]

    @property
    def is_complete(self) -> bool:
        return len(self.present) == self.ranks


@dataclass
class _Parked:
    arrival: Arrival
    since: float
    collected: bool = False


@dataclass
class _Wait:
    allocation_id: str
    epoch: int
    ranks: int
    until: float
    answer: Callable[[Gathering], None] = field(repr=False)


class Rendezvous:
    def __init__(self, orphan_s: float) -> None:
        self._orphan_s = orphan_s
        self._parked: dict[Place, _Parked] = {}
        self._waits: list[_Wait] = []

    def arrive(self, arrival: Arrival, now: float) -> None:
        """Park a worker; the same rank again replaces the earlier one. Completes every wait that it makes whole."""
        self._parked[arrival.place] = _Parked(arrival, now)
        for wait in [wait for wait in self._waits if self._gather(wait).is_complete]:
            self._waits.remove(wait)
            self._collect(wait)

    def wait(
        self, allocation_id: str, epoch: int, ranks: int, until: float, answer: Callable[[Gathering], None]
    ) -> None:
        """`answer` is called once: at once, at an arrival, or by `expire`."""
        wait = _Wait(allocation_id, epoch, ranks, until, answer)
        if self._gather(wait).is_complete:
            self._collect(wait)
        else:
            self._waits.append(wait)

    def expire(self, now: float) -> None:
        """Answer the waits whose time is up; those who came stay parked, and count as parked from now."""
        for wait in [wait for wait in self._waits if wait.until <= now]:
            self._waits.remove(wait)
            gathering = self._gather(wait)
            for arrival in gathering.present:
                self._parked[arrival.place].since = now
            wait.answer(gathering)

    def next_expiry(self) -> float | None:
        return min((wait.until for wait in self._waits), default=None)

    def suspects(self, now: float) -> list[Arrival]:
        """Who has been parked, uncollected, for longer than an orphan may."""
        return [
            parked.arrival
            for parked in self._parked.values()
            if not parked.collected and now - parked.since >= self._orphan_s
        ]

    def keep(self, arrival: Arrival, now: float) -> None:
        """It is still expected, or nobody could say: it counts as parked from now."""
        parked = self._parked.get(arrival.place)
        if parked is not None and parked.arrival == arrival:
            parked.since = now

    def drop(self, arrival: Arrival) -> bool:
        """Forget exactly this arrival. False when another took its place, or somebody collected it, meanwhile."""
        parked = self._parked.get(arrival.place)
        if parked is None or parked.arrival != arrival or parked.collected:
            return False
        del self._parked[arrival.place]
        return True

    def leave(self, place: Place) -> None:
        """The worker is gone, collected or not."""
        self._parked.pop(place, None)

    def close(self) -> None:
        """Answer every wait with who came so far, and forget everybody."""
        for wait in self._waits:
            wait.answer(self._gather(wait))
        self._waits.clear()
        self._parked.clear()

    def _gather(self, wait: _Wait) -> Gathering:
        places = (Place(wait.allocation_id, wait.epoch, rank) for rank in range(wait.ranks))
        present = tuple(self._parked[place].arrival for place in places if place in self._parked)
        return Gathering(wait.allocation_id, wait.epoch, wait.ranks, present)

    def _collect(self, wait: _Wait) -> None:
        gathering = self._gather(wait)
        for arrival in gathering.present:
            self._parked[arrival.place].collected = True
        wait.answer(gathering)
