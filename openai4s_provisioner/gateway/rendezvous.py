"""Who has come in and whether anybody still wants them: pure bookkeeping, the clock is passed in.

The control plane knows from its rows who of an attempt is missing. What only the gateway sees is a worker that came in
and is wanted by nobody: one that has been here for a while is a suspect; the owner asks the control plane about it and
then calls `keep` or `drop`. Nothing here closes a connection.
"""

from __future__ import annotations

from dataclasses import dataclass
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


class Rendezvous:
    def __init__(self, orphan_s: float) -> None:
        self._orphan_s = orphan_s
        self._here: dict[Place, tuple[Arrival, float]] = {}  # with the time since when nobody was asked about it

    def arrive(self, arrival: Arrival, now: float) -> None:
        """A worker is here; the same rank again replaces the earlier one."""
        self._here[arrival.place] = (arrival, now)

    def suspects(self, now: float) -> list[Arrival]:
        """Who has been here for longer than an orphan may, since they came or were asked about."""
        return [arrival for arrival, since in self._here.values() if now - since >= self._orphan_s]

    def keep(self, arrival: Arrival, now: float) -> None:
        """It is still expected, or nobody could say: its time begins anew."""
        if self._is_here(arrival):
            self._here[arrival.place] = (arrival, now)

    def drop(self, arrival: Arrival) -> bool:
        """Forget exactly this arrival. False when another took its place meanwhile."""
        if not self._is_here(arrival):
            return False
        del self._here[arrival.place]
        return True

    def leave(self, place: Place) -> None:
        """The worker is gone."""
        self._here.pop(place, None)

    def close(self) -> None:
        self._here.clear()

    def _is_here(self, arrival: Arrival) -> bool:
        return self._here.get(arrival.place, (None, 0.0))[0] == arrival
