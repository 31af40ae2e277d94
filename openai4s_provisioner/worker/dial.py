"""Dial the server: every address in turn, with back-off and jitter, until one handshake succeeds.

The address that last led to the server comes first. It knows which line to open with: the credential; after a hello
that got no answer, resume and credential by turns, since the credential may have been burned and only the answer
lost; after a first success always resume.
It keeps what failed and how, for the log and for the server. It refuses to give up: when to stop is its owner's.
"""

from __future__ import annotations

import logging
import os
import platform
import random
import socket
from dataclasses import dataclass
from typing import Callable

from ..transport.link import LinkSocket
from ..transport.loop import Loop, Timer
from ..wire.handshake import Hello, Resume, Welcomed
from .call import Call, Connected
from .route import Itinerary, Route, Stop, Target

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
_CAUSE_CHARS = 300

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Identity:
    """Who dials. `resume_key` is this process's own and random; the credential is good once."""

    allocation_id: str
    rank: int
    credential: str
    resume_key: bytes

    def __repr__(self) -> str:
        return f"Identity(allocation_id={self.allocation_id!r}, rank={self.rank})"

    def hello(self) -> Hello:
        host = "".join(char for char in socket.gethostname() if char.isalnum() or char in "-._")[:255]
        return Hello(self.credential, self.resume_key, host or "unnamed", os.getpid(), platform.python_version())

    def resume(self, received: int) -> Resume:
        return Resume(self.allocation_id, self.rank, received, self.resume_key)


@dataclass(frozen=True)
class DialFailure:
    address: str
    cause: str


class Dialer:
    """`connected` gets a non-blocking socket after each success; `received` says how much of the link we hold."""

    def __init__(
        self,
        loop: Loop,
        identity: Identity,
        itinerary: Itinerary,
        received: Callable[[], int],
        connected: Connected,
    ) -> None:
        self._loop = loop
        self._identity = identity
        self._itinerary = itinerary
        self._received = received
        self._connected = connected
        self._is_dialling = False
        self._call: Call | None = None
        self._pause: Timer | None = None
        self._ahead: list[Stop] = []  # stops of this round that were not tried yet
        self._targets: list[Target] = []  # of the present stop
        self._causes: list[str] = []  # why the others of the present stop failed
        self._certificate_sha256: str | None = None
        self._rounds = 0
        self._received_before = -1  # what we held when the last link began
        self._says_resume = False
        self.was_welcomed = False
        self.reached = ""  # the address that last led to the server
        self.failures: dict[str, DialFailure] = {}  # the latest of each address
        self.when_failed: Callable[[], None] = lambda: None  # one of them is new

    def start(self) -> None:
        """Dial now; after a pause when the last link brought nothing, or a server that drops us at once would be
        dialled without end. Does nothing while it is dialling already."""
        if self._is_dialling:
            return
        self._is_dialling = True
        if self._received() != self._received_before:
            self._rounds = 0
            self._plan()
        else:
            self._plan_later()

    def cancel(self) -> None:
        self._is_dialling = False
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _plan(self) -> None:
        self._pause = None
        self._itinerary.plan(not self.was_welcomed and self._rounds == 0, self._planned)

    def _planned(self, route: Route) -> None:
        if not self._is_dialling or self._call is not None:
            return
        self._certificate_sha256 = route.certificate_sha256
        self._ahead = sorted(route.stops, key=lambda stop: stop.address != self.reached)
        self._next_stop()

    def _next_stop(self) -> None:
        if not self._ahead:
            self._plan_later()
            return
        self._targets = list(self._ahead[0].targets)
        self._causes = [self._ahead[0].cause] if self._ahead[0].cause else []
        self._next_target()

    def _plan_later(self) -> None:
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(self._rounds, 16))
        self._rounds += 1
        self._pause = self._loop.call_later(pause_s * random.uniform(0.5, 1.5), self._plan)  # noqa: S311

    def _next_target(self) -> None:
        if not self._targets:
            self._note_failure(self._ahead.pop(0).address, "; ".join(self._causes))
            self._next_stop()
            return
        identity = self._identity
        saying = identity.resume(self._received()) if self._says_resume else identity.hello()
        self._target = self._targets.pop(0)
        self._call = Call(self._loop, self._target, self._certificate_sha256, saying, self._succeeded, self._failed)
        self._call.start()

    def _succeeded(self, peer: LinkSocket, welcome: Welcomed) -> None:
        self._call = None
        self._is_dialling = False
        self.was_welcomed = self._says_resume = True
        self._received_before = self._received()
        self.reached = self._ahead[0].address
        self._connected(peer, welcome)

    def _failed(self, cause: str, was_sent: bool) -> None:
        self._call = None
        self._causes.append(cause)
        if was_sent and not self.was_welcomed:
            self._says_resume = not self._says_resume
            if self._says_resume:
                self._targets.insert(0, self._target)  # it was there: the line that may be right is said at once
        self._next_target()

    def _note_failure(self, address: str, cause: str) -> None:
        """Into the log at once, but the same one only once: the log's last lines are what a person gets to read."""
        failure = DialFailure(address, cause[:_CAUSE_CHARS])
        is_new = self.failures.get(address) != failure
        self.failures[address] = failure
        if is_new:
            _log.warning("the server cannot be reached at %s: %s", address, failure.cause)
            self.when_failed()
