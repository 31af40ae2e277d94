"""Dial the server: every address in turn, with back-off and jitter, until one handshake succeeds.

It knows which line to open with: the credential first; after a hello that got no answer, resume and credential by
turns, since the credential may have been burned and only the answer lost; after a first success always resume.
It keeps what failed and how, for the log and for the server. It refuses to give up: when to stop is its owner's.
"""

from __future__ import annotations

import os
import platform
import random
import socket
from dataclasses import dataclass
from typing import Callable

from ..transport.loop import Loop, Timer
from ..wire.errors import ProtocolError
from ..wire.handshake import Hello, ProofWanted, Resume, Welcomed, WorkerHandshake

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
_HANDSHAKE_S = 30.0
_READ_BYTES = 16384

Connected = Callable[[socket.socket, Welcomed], None]


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
        addresses: tuple[str, ...],
        received: Callable[[], int],
        connected: Connected,
    ) -> None:
        self._loop = loop
        self._identity = identity
        self._addresses = addresses
        self._received = received
        self._connected = connected
        self._call: _Call | None = None
        self._pause: Timer | None = None
        self._next_address = 0
        self._rounds = 0
        self._received_before = -1  # what we held when the last link began
        self._says_resume = False
        self.was_welcomed = False
        self.failures: dict[str, DialFailure] = {}  # the latest of each address

    def start(self) -> None:
        """Dial now; after a pause when the last link brought nothing, or a server that drops us at once would be
        dialled without end. Does nothing while it is dialling already."""
        if self._call is not None or self._pause is not None:
            return
        self._next_address = 0
        if self._received() != self._received_before:
            self._rounds = 0
            self._dial()
        else:
            self._dial_later()

    def cancel(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _dial(self) -> None:
        self._pause = None
        identity = self._identity
        saying = identity.resume(self._received()) if self._says_resume else identity.hello()
        self._call = _Call(self._loop, self._addresses[self._next_address], saying, self._succeeded, self._failed)
        self._call.start()

    def _succeeded(self, peer: socket.socket, welcome: Welcomed) -> None:
        self._call = None
        self.was_welcomed = self._says_resume = True
        self._received_before = self._received()
        self._connected(peer, welcome)

    def _failed(self, cause: str, was_sent: bool) -> None:
        address = self._addresses[self._next_address]
        self._call = None
        self.failures[address] = DialFailure(address, cause)
        has_other_line = False  # the one that may be right is said soon, and only the pair of them counts as a try
        if was_sent and not self.was_welcomed:
            has_other_line = self._says_resume = not self._says_resume
        self._next_address = (self._next_address + 1) % len(self._addresses)
        self._dial_later(_FIRST_PAUSE_S if has_other_line else 0.0)

    def _dial_later(self, pause_s: float = 0.0) -> None:
        if self._next_address == 0 and not pause_s:
            pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(self._rounds, 16))
            self._rounds += 1
        self._pause = self._loop.call_later(pause_s * random.uniform(0.5, 1.5), self._dial)  # noqa: S311


class _Call:
    """One connection attempt and its handshake, against one deadline."""

    def __init__(
        self,
        loop: Loop,
        address: str,
        saying: Hello | Resume,
        succeeded: Connected,
        failed: Callable[[str, bool], None],
    ) -> None:
        self._loop = loop
        self._address = address
        self._table = WorkerHandshake(saying)
        self._outgoing = self._table.opening
        self._succeeded = succeeded
        self._failed = failed
        self._was_sent = False
        self._is_over = False
        self._socket: socket.socket | None = None

    def start(self) -> None:
        self._deadline = self._loop.call_later(_HANDSHAKE_S, self._fail, f"no answer within {_HANDSHAKE_S:.0f} s")
        try:
            self._socket = _connect(self._address)
        except (OSError, ValueError) as error:
            cause = getattr(error, "strerror", None) or str(error)
            self._loop.call_soon(self._fail, cause)  # not now: whoever starts us has not stored us yet
            return
        self._watch()

    def cancel(self) -> None:
        peer = self._release()
        if peer is not None:
            peer.close()

    def _watch(self) -> None:
        assert self._socket is not None
        writable = self._writable if self._outgoing else None
        self._loop.watch(self._socket.fileno(), readable=self._readable, writable=writable)

    def _writable(self) -> None:
        assert self._socket is not None
        try:
            sent = self._socket.send(self._outgoing)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(f"cannot send: {error.strerror}")
            return
        self._was_sent = True
        self._outgoing = self._outgoing[sent:]
        self._watch()

    def _readable(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(f"cannot receive: {error.strerror}")
            return
        if not data:
            self._fail("the server closed the connection without an answer")
            return
        try:
            event = self._table.receive(data)
        except ProtocolError as error:
            self._fail(f"not an answer of ours: {error}")
            return
        if isinstance(event, ProofWanted):
            self._outgoing += event.answer
            self._watch()
        elif isinstance(event, Welcomed):
            peer = self._release()
            assert peer is not None
            self._succeeded(peer, event)

    def _fail(self, cause: str) -> None:
        if self._is_over:
            return
        peer = self._release()
        if peer is not None:
            peer.close()
        self._failed(cause, self._was_sent)

    def _release(self) -> socket.socket | None:
        self._is_over = True
        self._deadline.cancel()
        peer, self._socket = self._socket, None
        if peer is not None:
            self._loop.unwatch(peer.fileno())
        return peer


def _connect(address: str) -> socket.socket:
    """A non-blocking socket that is connected, or connecting. Raises OSError, or ValueError for a foreign address."""
    kind, _, place = address.partition(":")
    if kind != "unix":
        raise ValueError(f"unknown kind of address: {kind!r}")
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        peer.connect(place)
    except BaseException:
        peer.close()
        raise
    return peer
