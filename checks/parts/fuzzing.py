"""Fuzzing the wire's tables at full speed: nothing may be accepted, and nothing but ProtocolError may come out.

Genuine lines and frames are damaged (bits, slices, splices, fields, lengths) and fed in pieces. The generator is
seeded, so a failure can be repeated; what failed is kept in the finding.
"""

from __future__ import annotations

import json
import random
import secrets
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from openai4s_provisioner.orchestration.bootstrap import BadCredential, Claims, CredentialIssuer
from openai4s_provisioner.wire.connection import Connection
from openai4s_provisioner.wire.errors import ProtocolError
from openai4s_provisioner.wire.frames import HEADER_SIZE, SHAPES, FrameType
from openai4s_provisioner.wire.handshake import (
    Hello,
    ProofWanted,
    Resume,
    ResumeAsked,
    ResumeProven,
    ServerHandshake,
    WorkerHandshake,
)

KEY = bytes(range(32))
_INTERESTING = (0, 1, 2, 3, 8, 9, 255, 256, 65535, 65536, 2**20, 2**20 + 1, 2**31 - 1, 2**31, 2**32 - 1)
_JSON_VALUES = ("null", "true", "-1", "1e999", "NaN", '""', "[]", "{}", '"\\ud800"', "18446744073709551616")
_JSON = (*_JSON_VALUES, "[" * 2000, '"' + "A" * 9000 + '"')


@dataclass
class Findings:
    """How often each outcome was met, and the first inputs that had one which must not be."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def note_wrong(self, what: str, sent: bytes) -> None:
        self.outcomes[f"WRONG: {what}"] += 1
        if len(self.wrong) < 5:
            self.wrong.append(f"{what}: {sent[:400]!r}")


class Damage:
    """Damages bytes in one to four ways."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._ways: tuple[Callable[[bytearray], None], ...] = (
            self._flip, self._cut, self._insert, self._repeat, self._number, self._swap_value,
        )  # fmt: skip

    def __call__(self, genuine: bytes) -> bytes:
        data = bytearray(genuine)
        for _ in range(self._chance.randint(1, 4)):
            self._chance.choice(self._ways)(data)
        return bytes(data)

    def _place(self, data: bytearray) -> int:
        return self._chance.randrange(len(data) + 1)

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._chance.randrange(len(data))] ^= 1 << self._chance.randrange(8)

    def _cut(self, data: bytearray) -> None:
        start = self._place(data)
        del data[start : start + self._chance.choice((1, 2, 8, 64))]

    def _insert(self, data: bytearray) -> None:
        start = self._place(data)
        data[start:start] = self._chance.randbytes(self._chance.choice((1, 2, 9, 40)))

    def _repeat(self, data: bytearray) -> None:
        start = self._place(data)
        data[start:start] = data[start : start + 32]

    def _number(self, data: bytearray) -> None:
        start = self._place(data)
        data[start : start + 4] = struct.pack(">I", self._chance.choice(_INTERESTING))

    def _swap_value(self, data: bytearray) -> None:
        """Another JSON value behind one of the colons."""
        colons = [place for place, byte in enumerate(data[:4096]) if byte == 0x3A]
        if colons:
            start = self._chance.choice(colons) + 1
            end = min(
                (place for place in (data.find(b",", start), data.find(b"}", start)) if place >= 0), default=len(data)
            )
            data[start:end] = self._chance.choice(_JSON).encode()

    def pieces(self, data: bytes) -> list[bytes]:
        """The same bytes, as a network may deliver them."""
        if self._chance.random() < 0.7 or len(data) < 2:
            return [data]
        middle = self._chance.randrange(1, len(data))
        return [data[:middle], data[middle:]]


class HandshakeFuzz:
    """Against the server's table and the judge of credentials. The genuine credential counts as burned."""

    def __init__(self, seed: int) -> None:
        self.findings = Findings()
        self._chance = random.Random(seed)
        self._damage = Damage(self._chance)
        self._issuer = CredentialIssuer(secrets.token_bytes(32))
        self._genuine = self._issuer.issue(Claims("w" * 32, "a" * 32, 3, 0, 4e9, "n" * 32))
        self._hello = WorkerHandshake(Hello(self._genuine, KEY, "node", 1, "3.9.18")).opening
        resume = Resume("a" * 32, 0, 77, KEY)
        self._resume = WorkerHandshake(resume).opening
        other = WorkerHandshake(resume)
        earlier = ServerHandshake()
        earlier.receive(self._resume)
        answer = other.receive(earlier.challenge(bytes(32), 5, KEY))
        assert isinstance(answer, ProofWanted)
        self._old_proof = answer.answer

    def run(self, count: int) -> Findings:
        for _ in range(count):
            self.once(self._an_opening(), self._a_proof)
        return self.findings

    def _an_opening(self) -> bytes:
        """One in five is whole, so that what comes behind a challenge is damaged as well."""
        which = self._chance.random()
        if which < 0.2:
            return self._resume
        return self._damage(self._hello if which < 0.7 else self._resume)

    def _a_proof(self) -> bytes:
        return self._old_proof if self._chance.random() < 0.3 else self._damage(self._old_proof)

    def once(self, opening: bytes, proof: Callable[[], bytes]) -> None:
        server = ServerHandshake()
        try:
            event = None
            for piece in self._damage.pieces(opening):
                event = server.receive(piece) if event is None else event
            if isinstance(event, Hello):
                self._judge(event, opening)
                return
            if isinstance(event, ResumeAsked):
                server.challenge(secrets.token_bytes(32), 5, KEY)
                if isinstance(server.receive(proof()), ResumeProven):
                    self.findings.note_wrong("a resume was proven without its key", opening)
                    return
            self.findings.outcomes["not complete" if event is None else "challenged in vain"] += 1
        except ProtocolError:
            self.findings.outcomes["ProtocolError"] += 1
        except Exception as error:
            self.findings.note_wrong(f"{type(error).__name__} came out of the table", opening)

    def _judge(self, said: Hello, opening: bytes) -> None:
        if said.credential == self._genuine:
            self.findings.outcomes["credential whole, hence burned"] += 1
            return
        try:
            self._issuer.verify(said.credential, 1e9)
        except BadCredential:
            self.findings.outcomes["bad credential"] += 1
        else:
            self.findings.note_wrong("a damaged credential was accepted", opening)


class FrameFuzz:
    """Against one end of a link: damaged frames of every type, and frames that are wrong in one known way."""

    def __init__(self, seed: int) -> None:
        self.findings = Findings()
        self._chance = random.Random(seed)
        self._damage = Damage(self._chance)
        self._genuine = [
            _frame(FrameType.OPEN, 2, struct.pack(">I", 65536) + b"kernel/shell"),
            _frame(FrameType.DATA, 1, b"some data"),
            _frame(FrameType.WINDOW, 1, struct.pack(">I", 65536)),
            _frame(FrameType.FIN, 1),
            _frame(FrameType.RESET, 1),
            _frame(FrameType.PING, 0),
            _frame(FrameType.PONG, 0, struct.pack(">Q", 0)),
            _frame(FrameType.ACK, 0, struct.pack(">Q", 0)),
            _frame(FrameType.CTRL, 0, json.dumps({"type": "kernel_started", "pid": 1}).encode()),
        ]

    def run(self, count: int) -> Findings:
        """`count` frames; half of them damaged somehow, half of them known to be wrong."""
        for number in range(count):
            if number % 2:
                self._once_damaged()
            else:
                self._once_wrong()
        return self.findings

    def _once_damaged(self) -> None:
        sent = self._damage(self._chance.choice(self._genuine))
        outcome = self._outcome(sent)
        if outcome not in ("ProtocolError", "understood"):
            self.findings.note_wrong(f"{outcome} came out of the table", sent)
        else:
            self.findings.outcomes[outcome] += 1

    def _once_wrong(self) -> None:
        what, sent = self._chance.choice(_WRONG)(self._chance)
        outcome = self._outcome(sent)
        if outcome != "ProtocolError":
            self.findings.note_wrong(f"{what} was {outcome}", sent)
        else:
            self.findings.outcomes["known to be wrong, refused"] += 1

    def _outcome(self, sent: bytes) -> str:
        link = Connection(opens_streams=True)
        link.mux.open("kernel/shell")
        link.fill(4096)
        try:
            for piece in self._damage.pieces(sent):
                for _ in link.receive(piece):
                    pass
            link.fill(4096)
        except ProtocolError:
            return "ProtocolError"
        except Exception as error:
            return type(error).__name__
        return "understood"


def _frame(kind: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">BII", kind, stream, len(payload)) + payload


_Wrong = Callable[[random.Random], tuple[str, bytes]]


def _unknown_type(chance: random.Random) -> tuple[str, bytes]:
    kind = chance.choice([number for number in range(256) if number not in SHAPES])
    return "an unknown type", _frame(kind, chance.randrange(4), chance.randbytes(chance.randrange(20)))


def _wrong_length(chance: random.Random) -> tuple[str, bytes]:
    kind, shape = chance.choice(list(SHAPES.items()))
    lengths = [length for length in _INTERESTING if not shape.shortest <= length <= shape.longest]
    header = struct.pack(">BII", kind, int(shape.on_stream), chance.choice(lengths))
    return "a wrong length", header + chance.randbytes(chance.randrange(64))


def _wrong_stream(chance: random.Random) -> tuple[str, bytes]:
    kind, shape = chance.choice(list(SHAPES.items()))
    stream = 0 if shape.on_stream else chance.choice(_INTERESTING[1:])
    return "a stream where none belongs, or none", _frame(kind, stream, bytes(shape.shortest))


def _unknown_stream(chance: random.Random) -> tuple[str, bytes]:
    kind = chance.choice((FrameType.DATA, FrameType.WINDOW, FrameType.FIN))
    payload = {FrameType.DATA: b"x", FrameType.WINDOW: struct.pack(">I", 5), FrameType.FIN: b""}[kind]
    return "a stream that never was", _frame(kind, chance.randrange(1000, 2**32), payload)


def _opened_by_the_wrong_end(chance: random.Random) -> tuple[str, bytes]:
    payload = struct.pack(">I", 65536) + b"kernel/shell"
    return "a stream opened by the end that may not", _frame(FrameType.OPEN, chance.randrange(1, 2**32), payload)


def _unsent_acknowledged(chance: random.Random) -> tuple[str, bytes]:
    offset = chance.randrange(10_000, 2**64)
    return "an acknowledgement of the future", _frame(FrameType.ACK, 0, struct.pack(">Q", offset))


def _control_that_is_none(chance: random.Random) -> tuple[str, bytes]:
    payload = chance.choice((b"[]", b"12", b'"text"', b"{]", b"\xff\xfe", b"[" * 5000, b"nul", b'{"a":}'))
    return "a control message that is none", _frame(FrameType.CTRL, 0, payload)


_WRONG: tuple[_Wrong, ...] = (
    _unknown_type,
    _wrong_length,
    _wrong_stream,
    _unknown_stream,
    _opened_by_the_wrong_end,
    _unsent_acknowledged,
    _control_that_is_none,
)
assert struct.calcsize(">BII") == HEADER_SIZE
