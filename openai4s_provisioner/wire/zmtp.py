"""Where the messages of a ZMTP 3 byte stream begin: the little that is needed to drop whole ones, and no more.

Follows one direction (kernel to client): a 64-byte greeting, the handshake's commands, then frames with the flags
MORE, LONG and COMMAND (https://rfc.zeromq.org/spec/23/). Never stores a body. Bytes that are not ZMTP 3, and
mechanisms that hide where a message ends, are a stated verdict and not an error: such a stream can be carried, but
nothing may be cut out of it.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from .frames import Buffer

GREETING_SIZE = 64
# A handshake is a few hundred bytes; what goes on beyond this is not one that must be kept for ever.
MAX_HANDSHAKE = 64 * 1024

NULL = b"NULL"
# How many commands the binding side sends before its first message. CURVE and GSSAPI encrypt MORE away.
_HANDSHAKE_COMMANDS = {NULL: 1, b"PLAIN": 2}


class Verdict(enum.Enum):
    UNDECIDED = "the greeting is not complete"
    MESSAGES = "ZMTP 3, message boundaries are known"
    OPAQUE = "not ZMTP 3, or a mechanism that hides message boundaries"


class _Flags(NamedTuple):
    size_bytes: int
    has_more: bool
    is_command: bool


# Every legal flags byte. A command has no MORE, and the other bits are reserved.
FLAGS = {
    0x00: _Flags(1, False, False),
    0x01: _Flags(1, True, False),
    0x02: _Flags(8, False, False),
    0x03: _Flags(8, True, False),
    0x04: _Flags(1, False, True),
    0x06: _Flags(8, False, True),
}


class MessageFinder:
    """Feed it every byte, in order, chopped anyhow."""

    def __init__(self) -> None:
        self.verdict = Verdict.UNDECIDED
        self._greeting = bytearray()
        self._size = bytearray()
        self._size_bytes = 0  # of the size field that is being read; 0 between frames
        self._body_left = 0
        self._is_inside_message = False  # the last frame had MORE
        self._commands_left = 0  # of the handshake
        self._handshake_left = MAX_HANDSHAKE

    def feed(self, data: Buffer) -> list[int]:
        """The offsets in `data` at which a message begins. Commands belong to the message before them."""
        starts: list[int] = []
        at, end = 0, len(data)
        while at < end and self.verdict is not Verdict.OPAQUE:
            if self._body_left:
                skipped = min(self._body_left, end - at)
                self._body_left -= skipped
                at += skipped
            elif self._size_bytes:
                at = self._read_size(data, at)
            elif self.verdict is Verdict.MESSAGES:
                if self._begin_frame(data[at]):
                    starts.append(at)
                at += 1
            else:
                at = self._read_greeting(data, at)
        return starts

    def _begin_frame(self, flags_byte: int) -> bool:
        """Whether a message begins with this frame."""
        flags = FLAGS.get(flags_byte)
        is_handshake = self._commands_left > 0
        if flags is None or (is_handshake and not flags.is_command):
            self.verdict = Verdict.OPAQUE
            return False
        self._size_bytes = flags.size_bytes
        if flags.is_command:
            # between the parts of a message there are none
            if self._is_inside_message:
                self.verdict = Verdict.OPAQUE
            return False
        begins = not self._is_inside_message
        self._is_inside_message = flags.has_more
        return begins

    def _read_size(self, data: Buffer, at: int) -> int:
        wanted = self._size_bytes - len(self._size)
        self._size += data[at : at + wanted]
        if len(self._size) == self._size_bytes:
            self._body_left = int.from_bytes(self._size, "big")
            self._size.clear()
            self._size_bytes = 0
            self._check_size()
        return min(at + wanted, len(data))

    def _check_size(self) -> None:
        if self._body_left >> 63:
            self.verdict = Verdict.OPAQUE
        if self._commands_left:
            self._commands_left -= 1
            self._handshake_left -= self._body_left
            if self._handshake_left < 0:
                self.verdict = Verdict.OPAQUE

    def _read_greeting(self, data: Buffer, at: int) -> int:
        wanted = GREETING_SIZE - len(self._greeting)
        self._greeting += data[at : at + wanted]
        if not may_become_greeting(self._greeting):
            self.verdict = Verdict.OPAQUE
        elif len(self._greeting) == GREETING_SIZE:
            mechanism = bytes(self._greeting[12:32]).rstrip(b"\0")
            self._commands_left = _HANDSHAKE_COMMANDS.get(mechanism, 0)
            self.verdict = Verdict.MESSAGES if self._commands_left else Verdict.OPAQUE
        return min(at + wanted, len(data))


def may_become_greeting(head: bytearray) -> bool:
    """Signature FF, 8 bytes that libzmq fills for older peers, 7F; then major version 3."""
    return all(len(head) <= place or head[place] == value for place, value in ((0, 0xFF), (9, 0x7F), (10, 3)))
