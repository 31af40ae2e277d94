"""What the handshake's lines may hold: one JSON object each, of known fields, every value checked before use.

A line with a field too many, too few or of another kind is refused whole. Nothing here knows whose turn it is.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import struct
from collections.abc import Mapping
from typing import Any, Callable

from .errors import ProtocolError

VERSION = 1
LINE_BYTES = 65536
RESUME_KEY_BYTES = 32
NONCE_BYTES = 32
_PROOF_BYTES = hashlib.sha256().digest_size
_LARGEST_COUNT = 2**63 - 1


class LineTooLong(ProtocolError):
    """The peer sent more than one line may hold without ending it."""


def _is_text(pattern: str) -> Callable[[Any], bool]:
    compiled = re.compile(pattern)
    return lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST_COUNT


def _is_bytes(length: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and len(from_base64(value)) == length


def _is_version(value: Any) -> bool:
    return type(value) is int and value == VERSION


def _is_true(value: Any) -> bool:
    return value is True


def _is_resume(value: Any) -> bool:
    return isinstance(value, dict) and matches(value, _RESUME_FIELDS)


Fields = Mapping[str, Callable[[Any], bool]]

_RESUME_FIELDS: Fields = {
    "allocation_id": _is_text(r"[A-Za-z0-9._-]{1,128}"),
    "rank": _is_count,
    "received": _is_count,
}
CREDENTIAL_LINE: Fields = {
    "v": _is_version,
    "credential": _is_text(r"[!-~]{1,8192}"),
    "resume_key": _is_bytes(RESUME_KEY_BYTES),
    "host": _is_text(r"[!-~]{1,255}"),
    "pid": _is_count,
    "python": _is_text(r"[!-~]{1,64}"),
}
RESUME_LINE: Fields = {"v": _is_version, "resume": _is_resume}
CHALLENGE_LINE: Fields = {"nonce": _is_bytes(NONCE_BYTES), "received": _is_count}
PROOF_LINE: Fields = {"proof": _is_bytes(_PROOF_BYTES)}
WELCOME_LINE: Fields = {"ok": _is_true, "generation": _is_text(r"[!-~]{1,128}")}


def matches(value: dict[str, Any], fields: Fields) -> bool:
    return value.keys() == fields.keys() and all(check(value[name]) for name, check in fields.items())


def parse(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):  # nested brackets exhaust the parser's stack, not ours
        raise ProtocolError("a line that is not JSON") from None
    if not isinstance(value, dict):
        raise ProtocolError("a line that is not a JSON object")
    return value


def render(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def to_base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def from_base64(text: str) -> bytes:
    """The bytes, or none at all when the text is not base64: no field of ours is empty."""
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except ValueError:
        return b""


class LineReader:
    """Takes bytes, gives at most one line; what follows it stays in `rest`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.rest = bytearray()

    def take(self, data: bytes) -> bytes | None:
        seen = len(self.rest)
        self.rest += data
        end = self.rest.find(b"\n", seen, self._limit)
        if end < 0:
            if len(self.rest) >= self._limit:
                raise LineTooLong("a first line without an end")
            return None
        line = bytes(self.rest[:end])
        del self.rest[: end + 1]
        return line


def resume_proof(
    key: bytes, nonce: bytes, allocation_id: str, rank: int, worker_received: int, server_received: int
) -> bytes:
    """HMAC-SHA256 over everything the two ends agreed on. Lengths go in, so that no two claims share their bytes."""
    name = allocation_id.encode("ascii")
    counts = struct.pack(">QQQ", rank, worker_received, server_received)
    claim = b"o4s-resume" + struct.pack(">II", len(nonce), len(name)) + nonce + name + counts
    return hmac.new(key, claim, hashlib.sha256).digest()
