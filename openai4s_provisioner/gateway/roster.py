"""The workers that proved who they are, by allocation and rank, each with the one link that outlives its connections.

A worker is enrolled when its credential is burned and published only when a connection of its own stands. A cut link
is "reconnecting" until the worker resumes or its time is up; a newer connection of the same rank replaces the older.
It refuses to decide what a lost worker means: that is told to the observer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from ..orchestration.models import Registration
from ..transport.link import Link, LinkSocket
from ..transport.loop import Loop, Timer
from ..transport.stream import Stream
from ..wire.errors import ProtocolError
from ..wire.handshake import ResumeAsked
from .desk import GatewayObserver, LinkState
from .limits import Limits
from .lobby import Lobby
from .rendezvous import Arrival, Place

_log = logging.getLogger(__name__)


class Roster:
    """`moved` is called, in the loop's thread, whenever a worker's link state has changed."""

    def __init__(
        self, loop: Loop, observer: GatewayObserver, limits: Limits, lobby: Lobby, moved: Callable[[str, int], None]
    ) -> None:
        self._loop = loop
        self._observer = observer
        self._limits = limits
        self._lobby = lobby
        self._moved = moved
        self._workers: dict[tuple[str, int], _Worker] = {}
        self._held: set[str] = set()  # allocations whose workers cannot speak for now

    # ---- what the reception asks and tells

    def bytes_received(self, allocation_id: str, rank: int) -> int | None:
        worker = self._workers.get((allocation_id, rank))
        return None if worker is None else worker.link.received

    def enrol(self, registration: Registration, host: str) -> None:
        key = (registration.allocation_id, registration.rank)
        former = self._workers.pop(key, None)
        if former is not None:
            former.close("replaced by a newer worker of the same rank")
        self._workers[key] = _Worker(self, self._loop, registration, host, self._limits)

    def settle(self, asked: ResumeAsked, peer: LinkSocket, generation: str) -> None:
        worker = self._workers.get((asked.allocation_id, asked.rank))
        if worker is None:  # forgotten between verdict and answer
            peer.close()
            return
        worker.attach(peer, generation, asked.received)

    # ---- what the gateway asks

    def link(self, allocation_id: str, rank: int) -> Link | None:
        """The link of a published worker, connected or not."""
        worker = self._workers.get((allocation_id, rank))
        return worker.link if worker is not None and worker.state is not None else None

    def send(self, allocation_id: str, rank: int, message: Mapping[str, Any]) -> bool:
        """Queue a control message; True when a worker is there to get it, now or after it has reconnected.

        False as well when too many wait for it already: the sender keeps it, bounded, or says that it did not go.
        """
        link = self.link(allocation_id, rank)
        return link is not None and link.send_control(dict(message))

    def hold(self, allocation_id: str, is_paused: bool) -> None:
        """Whether a worker of it that does not come back is waited for all the same."""
        if is_paused:
            self._held.add(allocation_id)
        else:
            self._held.discard(allocation_id)

    def is_held(self, worker: _Worker) -> bool:
        return worker.place.allocation_id in self._held

    def forget(self, allocation_id: str) -> None:
        self._held.discard(allocation_id)
        for worker in [worker for worker in self._workers.values() if worker.place.allocation_id == allocation_id]:
            self._retire(worker, "the allocation is over")

    def expel(self, arrival: Arrival) -> None:
        """Close a worker nobody expects, unless a newer connection of its rank took its place."""
        worker = self._workers.get((arrival.place.allocation_id, arrival.place.rank))
        if worker is not None and worker.generation == arrival.generation:
            self._retire(worker, "nobody expects this worker")

    def close(self) -> None:
        for worker in list(self._workers.values()):
            worker.close("the gateway stops")
        self._workers.clear()

    # ---- what its workers tell

    def message_came(self, worker: _Worker, message: Mapping[str, Any]) -> None:
        self._observer.worker_message(worker.place.allocation_id, worker.place.rank, message)

    def connected(self, worker: _Worker, is_new: bool) -> None:
        if is_new:
            self._observer.worker_registered(worker.registration, worker.host, worker.generation)
        self._lobby.arrive(Arrival(worker.place, worker.host, worker.generation))
        self._tell(worker, LinkState.CONNECTED)

    def cut(self, worker: _Worker, reason: str) -> None:
        _log.info("link to rank %d of %s lost: %s", worker.place.rank, worker.place.allocation_id, reason)
        self._tell(worker, LinkState.RECONNECTING)

    def gone(self, worker: _Worker, reason: str) -> None:
        self._retire(worker, reason)

    def _retire(self, worker: _Worker, reason: str) -> None:
        self._workers.pop((worker.place.allocation_id, worker.place.rank), None)
        self._lobby.leave(worker.place)
        worker.close(reason)
        if worker.state is not None:
            self._tell(worker, LinkState.GONE)

    def _tell(self, worker: _Worker, state: LinkState) -> None:
        worker.state = state
        self._observer.worker_link(worker.place.allocation_id, worker.place.rank, state)
        self._moved(worker.place.allocation_id, worker.place.rank)


class _Worker:
    """One worker's link, and what its connections do to its state. It is the link's handler."""

    def __init__(self, roster: Roster, loop: Loop, registration: Registration, host: str, limits: Limits) -> None:
        self.registration = registration
        self.host = host
        self.place = Place(registration.allocation_id, registration.epoch, registration.rank)
        self.state: LinkState | None = None  # None = enrolled, not published yet
        self.generation = ""
        self._roster = roster
        self._loop = loop
        self._reconnect_s = limits.reconnect_s
        self._patience: Timer | None = None
        self._has_ended = False
        self._is_closed = False
        self.link = Link(loop, self, opens_streams=True, window=limits.window_bytes)

    def attach(self, peer: LinkSocket, generation: str, peer_received: int) -> None:
        try:
            self.link.attach(peer, b"", peer_received)
        except ProtocolError as error:
            # It holds the key, and still counts bytes that never were: no later dial of it can do better.
            _log.warning("rank %d of %s cannot resume: %s", self.place.rank, self.place.allocation_id, error)
            peer.close()
            self._roster.gone(self, "its byte counts contradict ours")
            return
        self._stop_waiting()
        is_new, self.generation = self.state is None, generation
        self._roster.connected(self, is_new)

    def close(self, reason: str) -> None:
        self._is_closed = True
        self._stop_waiting()
        self.link.close(reason)

    # ---- the link's handler

    def control_received(self, message: dict[str, Any]) -> None:
        self._has_ended = self._has_ended or message.get("type") == "ended"
        self._roster.message_came(self, message)

    def stream_opened(self, stream: Stream) -> None:
        stream.reset()  # only the server opens streams

    def link_lost(self, reason: str) -> None:
        if self._is_closed:
            return
        if self._has_ended:
            self._roster.gone(self, "the worker has ended")
            return
        self._roster.cut(self, reason)
        self._wait()

    def _wait(self) -> None:
        self._stop_waiting()
        self._patience = self._loop.call_later(self._reconnect_s, self._waited)

    def _waited(self) -> None:
        if self._roster.is_held(self):
            self._wait()
        else:
            self._roster.gone(self, "it did not come back")

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
