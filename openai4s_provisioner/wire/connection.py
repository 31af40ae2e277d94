"""Frames, mux and resume together: the tunnel's protocol as one object, bytes in and events out, bytes out.

It outlives the sockets below it. While there is none, what the owner wishes waits; `resume` names where the next one
goes on. Refuses what frames, mux and resume refuse, always by ProtocolError; after one, the peer is not to be trusted
and the object is of no more use. No socket, no clock: whoever drives it says when a PING is due.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple, Union

from .frames import Buffer, Frame, FrameDecoder, FrameType, encode
from .mux import WINDOW, Mux, MuxEvent
from .resume import ACK_EVERY, REPLAY_LIMIT, Incoming, Outgoing

_U64 = struct.Struct("!Q")


class Acknowledged(NamedTuple):
    """The peer has every byte of ours before `offset`."""

    offset: int


Event = Union[MuxEvent, Acknowledged]


class Connection:
    """One end of the tunnel. Wishes about streams and control go to `mux`."""

    def __init__(
        self,
        *,
        opens_streams: bool,
        window: int = WINDOW,
        replay_limit: int = REPLAY_LIMIT,
        ack_every: int = ACK_EVERY,
    ) -> None:
        self.mux = Mux(opens_streams=opens_streams, window=window)
        self.outgoing = Outgoing(replay_limit)
        self._incoming = Incoming(ack_every)
        self._decoder = FrameDecoder()
        self._ping_due = False
        self._pong_due = False

    @property
    def received(self) -> int:
        """Bytes of the peer's stream that we have: what a resume states."""
        return self._incoming.received

    def receive(self, data: Buffer) -> Iterator[Event]:
        """The events in `data`. Consume it wholly: it is a generator, so that those before a bad frame come out."""
        self._incoming.count(len(data))
        for frame in self._decoder.feed(data):
            event = self._event_of(frame)
            if event is not None:
                yield event

    def resume(self, peer_received: int) -> None:
        """A new socket; its peer has `peer_received` bytes of ours."""
        self.outgoing.resume(peer_received)

    def ping(self) -> None:
        """Asks the peer for a sign of life, which also acknowledges what it has. At most one waits."""
        self._ping_due = True

    def fill(self, wanted: int) -> None:
        """Turns wishes into bytes until `wanted` unsent ones are there, or nothing more may be sent now.

        Called late and with a small number, so that a control frame never waits behind much that was decided earlier.
        """
        batch: list[Buffer] = []
        ready = self.outgoing.unsent
        while ready + sum(map(len, batch)) < wanted:
            frame = self._next_frame()
            if frame is None:
                break
            batch.extend(frame)
        self.outgoing.append(batch)

    def _next_frame(self) -> list[Buffer] | None:
        # These three are a few bytes and at most one of each waits, so they may pass the bound of the replay
        # buffer. They must: two ends that are both full could otherwise never acknowledge.
        if self._incoming.is_ack_due:
            return encode(FrameType.ACK, 0, _U64.pack(self._incoming.state()))
        if self._pong_due:
            self._pong_due = False
            return encode(FrameType.PONG, 0, _U64.pack(self._incoming.state()))
        if self._ping_due:
            self._ping_due = False
            return encode(FrameType.PING, 0)
        if self.outgoing.is_brimful:
            return None
        return self.mux.next_prompt() if self.outgoing.is_full else self.mux.next_frame()

    def _event_of(self, frame: Frame) -> Event | None:
        if frame.type is FrameType.PING:
            self._pong_due = True
            return None
        if frame.type in (FrameType.ACK, FrameType.PONG):
            (offset,) = _U64.unpack(frame.payload)
            self.outgoing.acknowledge(offset)
            return Acknowledged(offset)
        return self.mux.receive(frame)
