"""Who has come in, with a clock and the control plane attached: the sweep of orphans.

They are looked for on the idle tick and at each arrival. Each suspect is asked about once at a time; "not expected"
removes it, while a question that fails keeps it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from ..transport.loop import Loop, Timer
from .asking import when_answered
from .desk import FrontDesk
from .limits import Limits
from .rendezvous import Arrival, Place, Rendezvous


class Lobby:
    def __init__(self, loop: Loop, desk: FrontDesk, limits: Limits, orphaned: Callable[[Arrival], None]) -> None:
        self._loop = loop
        self._desk = desk
        self._limits = limits
        self._orphaned = orphaned
        self._rendezvous = Rendezvous(limits.orphan_s)
        self._asking: set[Arrival] = set()
        self._tick: Timer | None = None

    def start(self) -> None:
        self._tick = self._loop.call_later(self._limits.idle_tick_s, self._idle)

    def arrive(self, arrival: Arrival) -> None:
        self._rendezvous.arrive(arrival, self._loop.now())
        self._sweep()

    def leave(self, place: Place) -> None:
        self._rendezvous.leave(place)

    def close(self) -> None:
        if self._tick is not None:
            self._tick.cancel()
        self._rendezvous.close()

    def _idle(self) -> None:
        self._sweep()
        self.start()

    def _sweep(self) -> None:
        for suspect in self._rendezvous.suspects(self._loop.now()):
            if suspect not in self._asking:
                self._asking.add(suspect)
                self._ask(suspect)

    def _ask(self, suspect: Arrival) -> None:
        question = self._desk.is_expected(suspect.place.allocation_id, suspect.place.epoch)
        when_answered(
            self._loop,
            question,
            functools.partial(self._answered, suspect),
            functools.partial(self._unanswered, suspect),
        )

    def _answered(self, suspect: Arrival, is_expected: bool) -> None:
        if is_expected:
            self._unanswered(suspect)
            return
        self._asking.discard(suspect)
        if self._rendezvous.drop(suspect):
            self._orphaned(suspect)

    def _unanswered(self, suspect: Arrival) -> None:
        self._asking.discard(suspect)
        self._rendezvous.keep(suspect, self._loop.now())
