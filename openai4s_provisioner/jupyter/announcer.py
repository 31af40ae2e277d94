"""Tells a person what a session waits for: one event per change, and one line in the log.

Changes come from the control plane's thread; events are emitted on the loop of the caller, which may be gone.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from jupyter_events import EventLogger
from jupyter_events.schema_registry import SchemaRegistryException

from ..app import SessionChange

SCHEMA_ID = "https://events.openai4s.dev/session/v1"
SCHEMA_PATH = Path(__file__).parent / "events" / "session-v1.yaml"


class Announcer:
    """Emits changes of one session to an event logger, if there is one, and to a log."""

    def __init__(self, event_logger: EventLogger | None, log: logging.Logger) -> None:
        self._event_logger = event_logger
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._logged = ""
        if event_logger is not None:
            _register(event_logger)

    def announce_from_any_thread(self, change: SessionChange) -> None:
        # A sync caller's loop runs only during its calls: what happens between them reaches the log of the state.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._announce, change)

    def _announce(self, change: SessionChange) -> None:
        if change.sentence != self._logged:  # a change of phase alone is an event, and says nothing new to a reader
            self._log.info("Session %s: %s", change.workload_id[:8], change.sentence)
            self._logged = change.sentence
        if self._event_logger is not None:
            self._event_logger.emit(schema_id=SCHEMA_ID, data=change.as_event())


def _register(event_logger: EventLogger) -> None:
    try:
        event_logger.register_event_schema(SCHEMA_PATH)
    except SchemaRegistryException:
        return  # another session of this server was here before
