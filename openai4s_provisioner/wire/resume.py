"""The link as one reliable byte stream in each direction, with absolute offsets that survive its connections.

The sender keeps what the peer has not acknowledged and sends it again from the offset that the peer names after a
cut; the receiver counts and says so in time. An offset that cannot be (never sent, or already given up) is refused
and changes nothing. No socket, no clock; the bound on what is kept is asked for here and obeyed by the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from .errors import ProtocolError
from .frames import Buffer

REPLAY_LIMIT = 4 * 1024 * 1024
# Beyond the limit, for control messages and credit alone: that a kernel ended must not wait behind its output.
PROMPT_RESERVE = 1024 * 1024
ACK_EVERY = 256 * 1024


class Outgoing:
    """What we send: bytes [acknowledged, produced) are kept, [sent, produced) still have to be handed to the socket."""

    def __init__(self, limit: int = REPLAY_LIMIT) -> None:
        self._limit = limit
        self._flying: deque[bytes] = deque()  # sent in full, acknowledged not in full
        self._waiting: deque[bytes] = deque()  # not sent in full
        self._first_offset = 0  # of the oldest byte still kept
        self._into_first_waiting = 0
        self._offered = 0  # the peer may have this much: a TLS layer sends before it says how much it took
        self.acknowledged = 0
        self.sent = 0
        self.produced = 0

    @property
    def unsent(self) -> int:
        return self.produced - self.sent

    @property
    def is_full(self) -> bool:
        """At or past the bound: no DATA may be produced before an ACK."""
        return self.produced - self.acknowledged >= self._limit

    @property
    def is_brimful(self) -> bool:
        """Past the reserve too: nothing may be produced before an ACK, except the link's own tiny frames."""
        return self.produced - self.acknowledged >= self._limit + PROMPT_RESERVE

    def append(self, parts: Iterable[Buffer]) -> None:
        segment = b"".join(parts)
        if segment:
            self._waiting.append(segment)
            self.produced += len(segment)

    def next_bytes(self) -> memoryview:
        """The next unsent bytes, for the socket; empty when there are none. `advance` says how many it took."""
        if not self._waiting:
            return memoryview(b"")
        view = memoryview(self._waiting[0])[self._into_first_waiting :]
        self._offered = self.sent + len(view)
        return view

    def advance(self, count: int) -> None:
        """The socket took `count` bytes of what `next_bytes` showed."""
        self.sent += count
        self._into_first_waiting += count
        if self._into_first_waiting == len(self._waiting[0]):
            self._flying.append(self._waiting.popleft())
            self._into_first_waiting = 0

    def acknowledge(self, offset: int) -> None:
        """The peer has everything before `offset`. An old ACK that was replayed after a cut is no news and no error."""
        if offset > self._offered:
            raise ProtocolError(f"the peer acknowledges byte {offset} of {self._offered}")
        self.acknowledged = max(self.acknowledged, offset)
        self._forget(self._flying)

    def resume(self, offset: int) -> None:
        """A new connection: the peer has everything before `offset`, so the next byte to send is that one."""
        if not self.acknowledged <= offset <= self._offered:
            raise ProtocolError(f"the peer resumes at byte {offset}, we hold {self.acknowledged} to {self._offered}")
        self.acknowledged = self.sent = self._offered = offset
        self._waiting.extendleft(reversed(self._flying))
        self._flying.clear()
        self._forget(self._waiting)
        self._into_first_waiting = offset - self._first_offset

    def _forget(self, segments: deque[bytes]) -> None:
        """Those in front that the peer has in full."""
        while segments and self._first_offset + len(segments[0]) <= self.acknowledged:
            self._first_offset += len(segments.popleft())


class Incoming:
    """What we receive: counts, and says when an ACK is due."""

    def __init__(self, ack_every: int = ACK_EVERY) -> None:
        self._ack_every = ack_every
        self._stated = 0
        self.received = 0

    @property
    def is_ack_due(self) -> bool:
        return self.received - self._stated >= self._ack_every

    def count(self, size: int) -> None:
        self.received += size

    def state(self) -> int:
        """The offset to put into an ACK (or a PONG, or a hello) that is about to be sent."""
        self._stated = self.received
        return self.received
