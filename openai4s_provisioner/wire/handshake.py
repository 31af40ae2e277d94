"""The first lines of a worker's connection, both ends as tables: bytes in, one event out, no socket, no clock.

A worker opens with its one-time credential, or, after a cut, with a resume request that it proves by an HMAC over
a nonce of the server's and both ends' byte counts. Every line is one JSON object of known fields, ended by a
newline. Whatever else arrives raises ProtocolError, after which the table accepts nothing more.
It refuses to decide whether a credential is good: the owner asks elsewhere and then calls `accept`.
"""

from __future__ import annotations

import enum
import hmac
from dataclasses import dataclass
from typing import Any, Union

from .errors import ProtocolError
from .handshake_lines import (
    CHALLENGE_LINE,
    CREDENTIAL_LINE,
    LINE_BYTES,
    PROOF_LINE,
    RESUME_LINE,
    VERSION,
    WELCOME_LINE,
    LineReader,
    from_base64,
    matches,
    parse,
    render,
    resume_proof,
    to_base64,
)


class WrongProof(ProtocolError):
    """The peer does not hold the resume key it claims to hold."""


@dataclass(frozen=True)
class Hello:
    """What a first dial says. To the server `credential` is unverified: answer with `accept`, or close."""

    credential: str
    resume_key: bytes
    host: str
    pid: int
    python: str

    def __repr__(self) -> str:
        return f"Hello(host={self.host!r}, pid={self.pid})"


# ---- the server's end ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResumeAsked:
    """A dial after a cut. `received` is how much of our stream the worker has; answer with `challenge`, or close."""

    allocation_id: str
    rank: int
    received: int


@dataclass(frozen=True)
class ResumeProven:
    """The worker holds the resume key; answer with `accept`."""

    asked: ResumeAsked


ServerEvent = Union[Hello, ResumeAsked, ResumeProven]


class ServerState(enum.Enum):
    EXPECTS_HELLO = "expects hello"
    JUDGES_CREDENTIAL = "judges credential"
    FETCHES_KEY = "fetches key"
    EXPECTS_PROOF = "expects proof"
    PROVEN = "proven"
    ACCEPTED = "accepted"
    FAILED = "failed"


class _ServerInput(enum.Enum):
    CREDENTIAL = "a credential"
    RESUME = "a resume request"
    PROOF = "a proof"
    CHALLENGE = "our challenge"
    ACCEPT = "our acceptance"


_SERVER_TABLE: dict[tuple[ServerState, _ServerInput], ServerState] = {
    (ServerState.EXPECTS_HELLO, _ServerInput.CREDENTIAL): ServerState.JUDGES_CREDENTIAL,
    (ServerState.EXPECTS_HELLO, _ServerInput.RESUME): ServerState.FETCHES_KEY,
    (ServerState.FETCHES_KEY, _ServerInput.CHALLENGE): ServerState.EXPECTS_PROOF,
    (ServerState.EXPECTS_PROOF, _ServerInput.PROOF): ServerState.PROVEN,
    (ServerState.JUDGES_CREDENTIAL, _ServerInput.ACCEPT): ServerState.ACCEPTED,
    (ServerState.PROVEN, _ServerInput.ACCEPT): ServerState.ACCEPTED,
}


class ServerHandshake:
    """Feed it with `receive`; answer its event with `challenge` or `accept`, which give the bytes to send."""

    def __init__(self, line_bytes: int = LINE_BYTES) -> None:
        self.state = ServerState.EXPECTS_HELLO
        self._lines = LineReader(line_bytes)
        self._asked = ResumeAsked("", 0, 0)
        self._expected_proof = b""

    def receive(self, data: bytes) -> ServerEvent | None:
        """At most one event; None when the line is not complete. Raises ProtocolError, and then always does."""
        try:
            return self._receive(data)
        except ProtocolError:
            self.state = ServerState.FAILED
            raise

    def challenge(self, nonce: bytes, received: int, resume_key: bytes) -> bytes:
        """State how much of the worker's stream we have, and ask for the proof."""
        self._step(_ServerInput.CHALLENGE)
        asked = self._asked
        self._expected_proof = resume_proof(
            resume_key, nonce, asked.allocation_id, asked.rank, asked.received, received
        )
        return render({"nonce": to_base64(nonce), "received": received})

    def accept(self, generation: str) -> bytes:
        self._step(_ServerInput.ACCEPT)
        return render({"ok": True, "generation": generation})

    def _receive(self, data: bytes) -> ServerEvent | None:
        if self.state not in (ServerState.EXPECTS_HELLO, ServerState.EXPECTS_PROOF):
            raise ProtocolError(f"the worker spoke out of turn: {self.state.value}")
        line = self._lines.take(data)
        if line is None:
            return None
        if self._lines.rest:
            raise ProtocolError("the worker did not wait for the answer")
        value = parse(line)
        if matches(value, CREDENTIAL_LINE):
            return self._hello_said(value)
        if matches(value, RESUME_LINE):
            return self._resume_asked(value["resume"])
        if matches(value, PROOF_LINE):
            return self._proof_given(from_base64(value["proof"]))
        raise ProtocolError("a line with unknown, missing or malformed fields")

    def _hello_said(self, value: dict[str, Any]) -> Hello:
        self._step(_ServerInput.CREDENTIAL)
        key = from_base64(value["resume_key"])
        return Hello(value["credential"], key, value["host"], value["pid"], value["python"])

    def _resume_asked(self, value: dict[str, Any]) -> ResumeAsked:
        self._step(_ServerInput.RESUME)
        self._asked = ResumeAsked(value["allocation_id"], value["rank"], value["received"])
        return self._asked

    def _proof_given(self, proof: bytes) -> ResumeProven:
        self._step(_ServerInput.PROOF)
        if not hmac.compare_digest(proof, self._expected_proof):
            raise WrongProof("a proof made with another key")
        return ResumeProven(self._asked)

    def _step(self, what: _ServerInput) -> None:
        following = _SERVER_TABLE.get((self.state, what))
        if following is None:
            raise ProtocolError(f"{what.value} while the server {self.state.value}")
        self.state = following


# ---- the worker's end ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resume:
    """What a later dial says, and the key that proves it."""

    allocation_id: str
    rank: int
    received: int
    resume_key: bytes

    def __repr__(self) -> str:
        return f"Resume(allocation_id={self.allocation_id!r}, rank={self.rank}, received={self.received})"


@dataclass(frozen=True)
class ProofWanted:
    """Send these bytes."""

    answer: bytes


@dataclass(frozen=True)
class Welcomed:
    """The link stands. `leftover` are its first bytes, `peer_received` is how much of ours the server has."""

    generation: str
    peer_received: int
    leftover: bytes


WorkerEvent = Union[ProofWanted, Welcomed]


class WorkerState(enum.Enum):
    EXPECTS_CHALLENGE = "expects the challenge"
    EXPECTS_WELCOME = "expects the welcome"
    WELCOMED = "is welcomed"
    FAILED = "has failed"


class _WorkerInput(enum.Enum):
    CHALLENGE = "a challenge"
    WELCOME = "a welcome"


_WORKER_TABLE: dict[tuple[WorkerState, _WorkerInput], WorkerState] = {
    (WorkerState.EXPECTS_CHALLENGE, _WorkerInput.CHALLENGE): WorkerState.EXPECTS_WELCOME,
    (WorkerState.EXPECTS_WELCOME, _WorkerInput.WELCOME): WorkerState.WELCOMED,
}


class WorkerHandshake:
    """Send `opening`, then feed it with `receive`."""

    def __init__(self, saying: Hello | Resume) -> None:
        self._saying = saying
        self._lines = LineReader(LINE_BYTES)
        self._peer_received = 0
        resuming = isinstance(saying, Resume)
        self.state = WorkerState.EXPECTS_CHALLENGE if resuming else WorkerState.EXPECTS_WELCOME
        self.opening = _opening(saying)

    def receive(self, data: bytes) -> WorkerEvent | None:
        """At most one event; None when the line is not complete. Raises ProtocolError, and then always does."""
        try:
            return self._receive(data)
        except ProtocolError:
            self.state = WorkerState.FAILED
            raise

    def _receive(self, data: bytes) -> WorkerEvent | None:
        if self.state in (WorkerState.WELCOMED, WorkerState.FAILED):
            raise ProtocolError(f"the handshake {self.state.value}")
        line = self._lines.take(data)
        if line is None:
            return None
        value = parse(line)
        if matches(value, CHALLENGE_LINE):
            return self._challenged(value)
        if matches(value, WELCOME_LINE):
            return self._welcomed(value["generation"])
        raise ProtocolError("a line with unknown, missing or malformed fields")

    def _challenged(self, value: dict[str, Any]) -> ProofWanted:
        self._step(_WorkerInput.CHALLENGE)
        if self._lines.rest or not isinstance(self._saying, Resume):
            raise ProtocolError("the server did not wait for the proof")
        self._peer_received = value["received"]
        said = self._saying
        proof = resume_proof(
            said.resume_key,
            from_base64(value["nonce"]),
            said.allocation_id,
            said.rank,
            said.received,
            value["received"],
        )
        return ProofWanted(render({"proof": to_base64(proof)}))

    def _welcomed(self, generation: str) -> Welcomed:
        self._step(_WorkerInput.WELCOME)
        return Welcomed(generation, self._peer_received, bytes(self._lines.rest))

    def _step(self, what: _WorkerInput) -> None:
        following = _WORKER_TABLE.get((self.state, what))
        if following is None:
            raise ProtocolError(f"{what.value} while the worker {self.state.value}")
        self.state = following


def _opening(saying: Hello | Resume) -> bytes:
    if isinstance(saying, Resume):
        asked = {"allocation_id": saying.allocation_id, "rank": saying.rank, "received": saying.received}
        return render({"v": VERSION, "resume": asked})
    return render(
        {
            "v": VERSION,
            "credential": saying.credential,
            "resume_key": to_base64(saying.resume_key),
            "host": saying.host,
            "pid": saying.pid,
            "python": saying.python,
        }
    )
