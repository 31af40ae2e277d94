"""Which of a person's executions run, told from what a kernel publishes (Jupyter's messaging protocol, 5.x).

An execution begins with its `execute_input` and ends with the `status` "idle" that answers the same request. A silent
one has no `execute_input`, so a readiness check never counts, and neither does any other request. Signatures are not
checked: a kernel that lies about itself keeps its own lease, no more. Bounded: executions, and what is parsed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_DELIMITER = b"<IDS|MSG>"
_MAX_RUNNING = 256
_INPUT, _STATUS = b"execute_input", b"status"


class Executions:
    def __init__(self) -> None:
        self.began = False  # a person's execution began; for the reader to take back
        self.narrow: tuple[bytes, ...] = ()  # topics that hold all that matters here, once they are known
        self._running: dict[str, None] = {}
        self._status_topic = b""

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def heard(self, parts: Sequence[bytes]) -> None:
        """Take one published message in: topic, delimiter, signature, header, parent, metadata, content."""
        try:
            at = parts.index(_DELIMITER)
            header, parent, content = parts[at + 2], parts[at + 3], parts[at + 5]
        except (ValueError, IndexError):
            return
        topic = parts[0] if at else b""
        if _INPUT in header and _kind(header) == _INPUT.decode():
            self._begun(_read(parent), topic)
        elif _STATUS in header and _kind(header) == _STATUS.decode():
            self._status_topic = topic
            self._changed(_read(parent), _read(content))

    def _begun(self, parent: dict[str, Any], topic: bytes) -> None:
        if parent.get("msg_type") != "execute_request":
            return
        self.began = True
        self._running[str(parent.get("msg_id"))] = None
        if len(self._running) > _MAX_RUNNING:
            del self._running[next(iter(self._running))]
        stem = topic[: -len(_INPUT)]
        if topic.endswith(_INPUT) and self._status_topic == stem + _STATUS:
            self.narrow = (topic, self._status_topic)

    def _changed(self, parent: dict[str, Any], content: dict[str, Any]) -> None:
        state = content.get("execution_state")
        if state == "starting":  # another process took the kernel's place
            self._running.clear()
        elif state == "idle":
            self._running.pop(str(parent.get("msg_id")), None)


def _kind(header: bytes) -> str:
    return str(_read(header).get("msg_type"))


def _read(part: bytes) -> dict[str, Any]:
    try:
        found = json.loads(part)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
