"""The subscribing end of a ZMTP 3 connection (https://rfc.zeromq.org/spec/23/), for the little that is read of it.

Bytes in, messages out, bounded: of a message the first parts are kept, each up to a limit; what is larger or comes
later is passed over and never stored. Only the mechanism NULL: what is encrypted cannot be read here, and is refused
by name. Never sends anything itself; what to send are the constants and functions below.
"""

from __future__ import annotations

from .errors import ProtocolError
from .frames import Buffer
from .zmtp import FLAGS, GREETING_SIZE, NULL, may_become_greeting

# Version 3.0: there subscriptions are messages. They may follow only after the publisher's own READY.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + NULL.ljust(20, b"\0") + bytes(32)
READY = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
HELLO = GREETING + READY

MAX_PARTS = 8
MAX_PART_BYTES = 16 * 1024
_LONGEST_TOPIC = 255


def subscribe(topic: bytes) -> bytes:
    """Ask for the messages that begin with `topic`. Raises ValueError for one that does not fit a short frame."""
    return _subscription(b"\x01" + topic)


def unsubscribe(topic: bytes) -> bytes:
    """Take one subscription back."""
    return _subscription(b"\x00" + topic)


def _subscription(body: bytes) -> bytes:
    if len(body) > _LONGEST_TOPIC:
        raise ValueError("the topic is too long")
    return bytes([0, len(body)]) + body


class MessageReader:
    """Feed it every byte that the publisher sends, in order, chopped anyhow."""

    def __init__(self) -> None:
        self.is_ready = False  # the handshake is over: subscriptions may be sent
        self._is_greeted = False
        self._head = bytearray()  # of the greeting, or of the frame that begins
        self._body = bytearray()
        self._body_left = 0
        self._is_kept = False
        self._is_message = False
        self._has_more = False
        self._parts: list[bytes] = []

    def feed(self, data: Buffer) -> list[list[bytes]]:
        """The messages that are complete now. A part that was too large is empty.

        Raises ProtocolError for a peer that is not a ZMTP 3 one or encrypts; it is of no use afterwards.
        """
        view = memoryview(data)
        messages: list[list[bytes]] = []
        at, end = 0, len(view)
        while at < end:
            if self._body_left:
                size = min(self._body_left, end - at)
                if self._is_kept:
                    self._body += view[at : at + size]
                self._body_left -= size
                at += size
            elif not self._is_greeted:
                at = self._read_greeting(view, at)
                continue
            else:
                at += 1
                self._head.append(view[at - 1])
                if not self._begin_frame():
                    continue
            if not self._body_left:
                self._end_frame(messages)
        return messages

    def _begin_frame(self) -> bool:
        """Whether the head is complete."""
        flags = FLAGS.get(self._head[0])
        if flags is None:
            raise ProtocolError("these are not frames of ZMTP 3")
        if len(self._head) <= flags.size_bytes:
            return False
        self._body_left = int.from_bytes(self._head[1:], "big")
        self._head.clear()
        self._is_message, self._has_more = not flags.is_command, flags.has_more
        self._is_kept = self._is_message and len(self._parts) < MAX_PARTS and self._body_left <= MAX_PART_BYTES
        return True

    def _end_frame(self, messages: list[list[bytes]]) -> None:
        if not self.is_ready:
            if self._is_message:
                raise ProtocolError("a message came before the handshake was over")
            self.is_ready = True
        if not self._is_message:
            return
        if len(self._parts) < MAX_PARTS:
            self._parts.append(bytes(self._body))
        self._body.clear()
        if not self._has_more:
            messages.append(self._parts)
            self._parts = []

    def _read_greeting(self, view: memoryview, at: int) -> int:
        wanted = GREETING_SIZE - len(self._head)
        self._head += view[at : at + wanted]
        if not may_become_greeting(self._head):
            raise ProtocolError("this is not a greeting of ZMTP 3")
        if len(self._head) == GREETING_SIZE:
            if bytes(self._head[12:32]).rstrip(b"\0") != NULL:
                raise ProtocolError("this connection is encrypted")
            self._is_greeted = True
            self._head.clear()
        return min(at + wanted, len(view))
