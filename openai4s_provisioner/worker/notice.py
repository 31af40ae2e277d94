"""The notice that a reader finds where output of its kernel was lost: a `stream` message, signed with the kernel's key.

It answers the same request as the message behind the gap, so that a notebook shows it in the right cell. Refuses to
guess: a signature scheme that is not an HMAC, or a message it cannot read, gives an unsigned notice, or one without a
parent, and never an exception.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

_DELIMITER = b"<IDS|MSG>"
_PARENT = 3  # behind the delimiter: signature, header, parent header
_MORE, _LONG = 1, 2


class LossNotice:
    """Makes the notices of one start of a kernel. `launch` is the message that started it."""

    def __init__(self, launch: Mapping[str, Any]) -> None:
        self._key = str(launch.get("key", "")).encode()
        self._digest = _digest(str(launch.get("signature_scheme", "")))
        self._session = uuid.uuid4().hex

    def __call__(self, messages: int, size: int, following: bytes) -> bytes:
        """The ZMTP frames of one message, to be put in front of `following`, the first bytes of another."""
        text = (
            f"[openai4s] Output was lost here: {messages} messages ({size / 1e6:.1f} MB). The reader was away or too "
            "slow, and what is kept for it in the meantime has a limit (spool_mb of the session's profile).\n"
        )
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": "stream",
            "username": "openai4s",
            "session": self._session,
            "date": datetime.now(timezone.utc).isoformat(),
            "version": "5.3",
        }
        content = {"name": "stderr", "text": text}
        signed = [json.dumps(part).encode() for part in (header, _parent_of(following), {}, content)]
        return _frames([b"stream.stderr", _DELIMITER, self._signature(signed), *signed])

    def _signature(self, parts: list[bytes]) -> bytes:
        if not self._key or not self._digest:
            return b""
        return hmac.new(self._key, b"".join(parts), self._digest).hexdigest().encode()


def _digest(scheme: str) -> str:
    kind, _, name = scheme.partition("-")
    return name if kind == "hmac" and name in hashlib.algorithms_available else ""


def _parent_of(message: bytes) -> dict[str, Any]:
    """The parent header of a Jupyter message, as far as its first bytes show it."""
    parts = list(_whole_frames(message))
    try:
        parent = json.loads(parts[parts.index(_DELIMITER) + _PARENT])
    except (ValueError, IndexError, RecursionError):
        return {}
    return parent if isinstance(parent, dict) else {}


def _whole_frames(message: bytes) -> Iterator[bytes]:
    at, has_more = 0, True
    while has_more and at + 9 <= len(message):
        flags = message[at]
        start = at + (9 if flags & _LONG else 2)
        end = start + int.from_bytes(message[at + 1 : start], "big")
        if flags & ~(_MORE | _LONG) or end > len(message):
            return
        yield message[start:end]
        at, has_more = end, bool(flags & _MORE)


def _frames(parts: list[bytes]) -> bytes:
    made = b""
    for place, part in enumerate(parts):
        flags = _MORE if place < len(parts) - 1 else 0
        if len(part) > 255:
            made += bytes([flags | _LONG]) + len(part).to_bytes(8, "big") + part
        else:
            made += bytes([flags, len(part)]) + part
    return made
