"""Takes in peers that have not proven anything yet: one handshake each, against one deadline, a bounded number.

Order: TLS where the peer came over the network, the table parses, the front desk judges (and burns), then we answer.
Every refusal looks alike to the peer, the connection just closes; our own side counts it by kind, and logs the 1st,
10th, 100th ... of each, without a byte of what the peer sent. The network's crowd is bounded apart, so that it cannot
keep workers of this machine out. A verdict that comes after the peer left, or after `close`, publishes nothing.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import logging
import secrets
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..orchestration.models import Registration
from ..orchestration.moments import is_round
from ..transport.link import LinkSocket
from ..transport.loop import Loop
from ..transport.tls import Progress, TlsSocket
from ..wire.errors import ProtocolError
from ..wire.handshake import Hello, ResumeAsked, ResumeProven, ServerHandshake, WrongProof
from ..wire.handshake_lines import NONCE_BYTES, RESUME_KEY_BYTES, LineTooLong
from .asking import when_answered
from .desk import FrontDesk
from .limits import Limits
from .turnstile import Turnstile

_log = logging.getLogger(__name__)
_READ_BYTES = 16384
_DRAIN_READS = 16
_LIKELY_COUNT = 1 << 24  # of bytes that a session has sent after a while


class Refusal(enum.StrEnum):
    """Why a peer was closed; for our own counters and log only."""

    TOO_LATE = "too late"
    NO_TLS = "no TLS handshake"
    TOO_LONG = "line too long"
    MALFORMED = "malformed"
    CREDENTIAL = "credential not accepted"
    PROOF = "proof not accepted"
    STALE_COUNT = "the link moved on meanwhile"
    LEFT = "the peer left"
    DESK_SILENT = "could not ask"


@dataclass(frozen=True)
class Census:
    """A snapshot for whoever watches: peers in the hall now, closed over the limit, refused by kind, welcomed."""

    waiting: int
    over_limit: int
    welcomed: int
    refused: dict[Refusal, int]


class Residents(Protocol):
    """Those who are in already: what the reception must know of, and tell, the owner of the links."""

    def bytes_received(self, allocation_id: str, rank: int) -> int | None:
        """How much of this worker's stream we hold; None when we know no such worker."""

    def enrol(self, registration: Registration, host: str) -> None:
        """The credential is burned: from now on this worker may resume, whether or not it hears our answer."""

    def settle(self, asked: ResumeAsked, peer: LinkSocket, generation: str) -> None:
        """Hand over a welcomed connection; `asked.received` is how much of our stream the worker holds."""


class Reception:
    def __init__(self, loop: Loop, desk: FrontDesk, residents: Residents, limits: Limits) -> None:
        self._loop = loop
        self._desk = desk
        self._residents = residents
        self._limits = limits
        self._guests: set[_Guest] = set()
        self._turnstile = Turnstile(loop)
        self._over_limit = 0
        self._welcomed = 0
        self._refused: collections.Counter[Refusal] = collections.Counter()

    def receive(self, peer: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Take in a peer of this machine, or with `tls` one of the network."""
        over_network = tls is not None
        if sum(guest.over_network is over_network for guest in self._guests) >= self._limits.unauthenticated_peers:
            self._over_limit += 1
            peer.close()
            return
        guest = _Guest(self._loop, self._desk, self._residents, self._limits, peer, self._left)
        self._guests.add(guest)
        if tls is None:
            guest.start()
        else:
            guest.start_tls(tls, self._turnstile)

    def census(self) -> Census:
        return Census(len(self._guests), self._over_limit, self._welcomed, dict(self._refused))

    def close(self) -> None:
        for guest in list(self._guests):
            guest.dismiss()
        self._guests.clear()

    def _left(self, guest: _Guest, refusal: Refusal | None) -> None:
        self._guests.discard(guest)
        if refusal is None:
            self._welcomed += 1
            return
        self._refused[refusal] += 1
        if is_round(self._refused[refusal]):
            _log.info("a connection was refused: %s (%d so far)", refusal.value, self._refused[refusal])


class _Guest:
    """One connection on its way through the handshake."""

    def __init__(
        self,
        loop: Loop,
        desk: FrontDesk,
        residents: Residents,
        limits: Limits,
        peer: socket.socket,
        left: Callable[[_Guest, Refusal | None], None],
    ) -> None:
        self._loop = loop
        self._desk = desk
        self._residents = residents
        self._socket = peer
        self._peer: socket.socket | TlsSocket = peer
        self._left = left
        self._table = ServerHandshake(limits.line_bytes)
        self._outgoing = b""
        self._then: Callable[[], None] | None = None
        self._stated_count: int | None = None
        self._is_open = True
        self._deadline = loop.call_later(limits.handshake_s, self._refuse, Refusal.TOO_LATE)

    @property
    def over_network(self) -> bool:
        return isinstance(self._peer, TlsSocket)

    def start(self) -> None:
        self._loop.watch(self._peer.fileno(), readable=self._readable)

    def start_tls(self, context: ssl.SSLContext, turnstile: Turnstile) -> None:
        self._peer = peer = TlsSocket(self._socket, context)
        queue = functools.partial(self._queue_shake, peer, turnstile)
        self._loop.watch(peer.fileno(), readable=queue)

    def dismiss(self) -> None:
        """Close without counting: the gateway stops."""
        if self._is_open:
            self._release()
            self._peer.close()

    # ---- TLS

    def _queue_shake(self, peer: TlsSocket, turnstile: Turnstile) -> None:
        self._loop.unwatch(peer.fileno())  # what waits is still there when our turn comes
        turnstile.queue(functools.partial(self._shake, peer, turnstile))

    def _shake(self, peer: TlsSocket, turnstile: Turnstile) -> None:
        if not self._is_open:
            return
        try:
            progress = peer.shake()
        except OSError:
            self._refuse(Refusal.NO_TLS)
            return
        queue = functools.partial(self._queue_shake, peer, turnstile)
        if progress is Progress.WANTS_WRITE:
            self._loop.watch(peer.fileno(), writable=queue)
        elif progress is Progress.WANTS_READ:
            self._loop.watch(peer.fileno(), readable=queue)
        else:
            self._loop.watch(peer.fileno(), readable=self._readable)
            self._readable()  # the first line may have come with the handshake's last one

    # ---- from the peer

    def _readable(self) -> None:
        """Read on until nothing is there: what TLS holds already, the descriptor does not show."""
        while self._is_open and self._read_once():
            pass

    def _read_once(self) -> bool:
        try:
            data = self._peer.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self._refuse(Refusal.LEFT)
            return False
        try:
            event = self._table.receive(data)
        except LineTooLong:
            self._refuse(Refusal.TOO_LONG)
        except WrongProof:
            self._refuse(Refusal.PROOF)
        except ProtocolError:
            self._refuse(Refusal.MALFORMED)
        else:
            self._act(event)
        return True

    def _act(self, event: Hello | ResumeAsked | ResumeProven | None) -> None:
        if isinstance(event, Hello):
            verdict = self._desk.register(event.credential, event.resume_key, event.host)
            when_answered(self._loop, verdict, functools.partial(self._judged, event.host), self._desk_silent)
        elif isinstance(event, ResumeAsked):
            self._look_up(event)
        elif isinstance(event, ResumeProven):
            self._proven(event.asked)

    # ---- first dial

    def _judged(self, host: str, registration: Registration | None) -> None:
        if registration is None:
            self._refuse(Refusal.CREDENTIAL)
            return
        self._residents.enrol(registration, host)
        if self._is_open:
            self._welcome(ResumeAsked(registration.allocation_id, registration.rank, 0))

    # ---- resume

    def _look_up(self, asked: ResumeAsked) -> None:
        if self._residents.bytes_received(asked.allocation_id, asked.rank) is None:
            self._challenge(asked, None)
            return
        key = self._desk.resume_key(asked.allocation_id, asked.rank)
        when_answered(self._loop, key, functools.partial(self._challenge, asked), self._desk_silent)

    def _challenge(self, asked: ResumeAsked, key: bytes | None) -> None:
        """An unknown worker is challenged like a known one, with a key nobody has: it learns nothing from us."""
        if not self._is_open:
            return
        count = self._residents.bytes_received(asked.allocation_id, asked.rank) if key is not None else None
        self._stated_count = count
        # Nor does the count tell whether there is such a session.
        stated = secrets.randbelow(_LIKELY_COUNT) if count is None else count
        effective_key = key if key is not None and count is not None else secrets.token_bytes(RESUME_KEY_BYTES)
        self._send(self._table.challenge(secrets.token_bytes(NONCE_BYTES), stated, effective_key), None)

    def _proven(self, asked: ResumeAsked) -> None:
        # Its previous connection may have delivered more since we stated our count: then it has to ask again.
        count = self._residents.bytes_received(asked.allocation_id, asked.rank)
        if count is None or count != self._stated_count:
            self._refuse(Refusal.STALE_COUNT)
            return
        self._welcome(asked)

    # ---- to the peer

    def _welcome(self, asked: ResumeAsked) -> None:
        generation = secrets.token_hex(16)
        self._send(self._table.accept(generation), functools.partial(self._settle, asked, generation))

    def _settle(self, asked: ResumeAsked, generation: str) -> None:
        self._release()
        self._left(self, None)
        self._residents.settle(asked, self._peer, generation)

    def _send(self, line: bytes, then: Callable[[], None] | None) -> None:
        self._outgoing, self._then = line, then
        self._writable()

    def _writable(self) -> None:
        try:
            sent = self._peer.send(memoryview(self._outgoing))
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._refuse(Refusal.LEFT)
            return
        self._outgoing = self._outgoing[sent:]
        if self._outgoing:
            self._loop.watch(self._peer.fileno(), readable=self._readable, writable=self._writable)
            return
        self._loop.watch(self._peer.fileno(), readable=self._readable)
        if self._then is not None:
            self._then()

    # ---- the end

    def _desk_silent(self) -> None:
        """Nothing was burned that we know of; the worker dials again."""
        self._refuse(Refusal.DESK_SILENT)

    def _refuse(self, refusal: Refusal) -> None:
        if not self._is_open:
            return
        self._release()
        _close_alike(self._socket)
        self._left(self, refusal)

    def _release(self) -> None:
        self._is_open = False
        self._deadline.cancel()
        self._loop.unwatch(self._peer.fileno())


def _close_alike(peer: socket.socket) -> None:
    """Close so that the peer sees a plain end: unread bytes would turn it into a reset, which tells kinds apart."""
    with contextlib.suppress(OSError):
        for _ in range(_DRAIN_READS):
            if not peer.recv(_READ_BYTES):
                break
    peer.close()
