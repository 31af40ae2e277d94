"""One stream of the tunnel, seen from one end: its states as a table, its credit both ways, what waits to be sent.

What may happen in which state is TRANSITIONS and nowhere else; `after` raises ProtocolError for what it does not
hold, before anything has changed. Knows no frame encoding and no other stream.
"""

from __future__ import annotations

import enum
from collections import deque

from .errors import ProtocolError
from .frames import Buffer

# A channel's class by the last part of its name; the smaller goes first. Anything else is bulk, like iopub.
_CLASS_OF_CHANNEL = {"control": 0, "hb": 0, "shell": 1, "stdin": 1, "iopub": 2}
_BULK = 2
CLASSES = 3


class State(enum.Enum):
    """GONE streams are forgotten: their number, no greater than the last one opened, says what they are."""

    OPEN = "both directions open"
    WE_FINISHED = "we sent FIN"
    PEER_FINISHED = "the peer sent FIN"
    RESETTING = "we sent RESET; what the peer sent before it knew still arrives"
    GONE = "over"


class Move(enum.Enum):
    GOT_DATA = "DATA"
    GOT_WINDOW = "WINDOW"
    GOT_FIN = "FIN"
    GOT_RESET = "RESET"
    SEND_FIN = "sending FIN"
    SEND_RESET = "sending RESET"


# RESETTING ends with the peer's FIN or RESET: every end answers the RESET of a stream that it still has with its own.
# A WINDOW or RESET may cross with our last frame, so a stream that is over still bears them.
TRANSITIONS: dict[tuple[State, Move], State] = {
    (State.OPEN, Move.GOT_DATA): State.OPEN,
    (State.OPEN, Move.GOT_WINDOW): State.OPEN,
    (State.OPEN, Move.GOT_FIN): State.PEER_FINISHED,
    (State.OPEN, Move.GOT_RESET): State.GONE,
    (State.OPEN, Move.SEND_FIN): State.WE_FINISHED,
    (State.OPEN, Move.SEND_RESET): State.RESETTING,
    (State.WE_FINISHED, Move.GOT_DATA): State.WE_FINISHED,
    (State.WE_FINISHED, Move.GOT_WINDOW): State.WE_FINISHED,
    (State.WE_FINISHED, Move.GOT_FIN): State.GONE,
    (State.WE_FINISHED, Move.GOT_RESET): State.GONE,
    (State.WE_FINISHED, Move.SEND_RESET): State.RESETTING,
    (State.PEER_FINISHED, Move.GOT_WINDOW): State.PEER_FINISHED,
    (State.PEER_FINISHED, Move.GOT_RESET): State.GONE,
    (State.PEER_FINISHED, Move.SEND_FIN): State.GONE,
    (State.PEER_FINISHED, Move.SEND_RESET): State.GONE,
    (State.RESETTING, Move.GOT_DATA): State.RESETTING,
    (State.RESETTING, Move.GOT_WINDOW): State.RESETTING,
    (State.RESETTING, Move.GOT_FIN): State.GONE,
    (State.RESETTING, Move.GOT_RESET): State.GONE,
    (State.GONE, Move.GOT_WINDOW): State.GONE,
    (State.GONE, Move.GOT_RESET): State.GONE,
}

_MAY_SEND = (State.OPEN, State.PEER_FINISHED)
_MAY_RECEIVE = (State.OPEN, State.WE_FINISHED)


def after(state: State, move: Move, stream_id: int) -> State:
    try:
        return TRANSITIONS[state, move]
    except KeyError:
        raise ProtocolError(f"{move.value} on stream {stream_id}, which is: {state.value}") from None


class StreamHalves:
    """The credit of both directions, and the bytes that wait for it."""

    def __init__(self, channel: str, *, allowance: int, credit: int = 0) -> None:
        self.state = State.OPEN
        self.send_class = _CLASS_OF_CHANNEL.get(channel.rsplit("/", 1)[-1], _BULK)
        self.allowance = allowance  # bytes the peer may still send
        self.credit = credit  # bytes we may still send
        self.consumed = 0  # bytes our owner took, not yet given back to the peer as credit
        self.buffered = 0
        self.finishing = False  # FIN is wished for; it goes out after what is buffered
        self.is_queued = False  # waits in its class's round
        self._pieces: deque[memoryview] = deque()

    @property
    def has_something_to_send(self) -> bool:
        return self.state in _MAY_SEND and (self.buffered > 0 or self.finishing)

    @property
    def can_send_now(self) -> bool:
        return self.has_something_to_send and (self.credit > 0 or not self.buffered)

    @property
    def gives_credit(self) -> bool:
        return self.state in _MAY_RECEIVE

    def put(self, data: Buffer) -> None:
        self._pieces.append(memoryview(bytes(data)))
        self.buffered += len(data)

    def take(self, most: int) -> list[Buffer]:
        """Up to `most` buffered bytes that credit allows, as pieces, uncopied."""
        room = min(most, self.buffered, self.credit)
        self.buffered -= room
        self.credit -= room
        parts: list[Buffer] = []
        while room:
            piece = self._pieces[0]
            if len(piece) > room:
                self._pieces[0] = piece[room:]
                piece = piece[:room]
            else:
                self._pieces.popleft()
            room -= len(piece)
            parts.append(piece)
        return parts

    def drop(self) -> None:
        self._pieces.clear()
        self.buffered = 0
