"""Tells a person what a session waits for and when it ends: one event per change, and one line in the log.

Changes come from the control plane's thread; events are emitted on the loop of the caller, which may be gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from pathlib import Path

from jupyter_events import EventLogger
from jupyter_events.schema_registry import SchemaRegistryException

from ..app import LeaseNotice, Notice, SessionChange
from ..orchestration.models import Phase
from ..orchestration.readiness import Readiness
from ..starts import CHECKING, Start

SCHEMA_ID = "https://events.openai4s.dev/session/v1"
LEASE_SCHEMA_ID = "https://events.openai4s.dev/lease/v1"
WALLTIME_SCHEMA_ID = "https://events.openai4s.dev/walltime/v1"
_EVENTS = Path(__file__).parent / "events"
SCHEMA_PATHS = (_EVENTS / "session-v1.yaml", _EVENTS / "lease-v1.yaml", _EVENTS / "walltime-v1.yaml")


class Announcer:
    """Emits changes of one kernel's session to an event logger, if there is one, and to a log."""

    def __init__(self, event_logger: EventLogger | None, log: logging.Logger, kernel_id: str) -> None:
        self._kernel_id = kernel_id
        self._event_logger = event_logger
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._logged = ""
        if event_logger is not None:  # a server whose extension is off has not done this
            register(event_logger)

    def announce_from_any_thread(self, change: SessionChange | Notice) -> None:
        # A sync caller's loop runs only during its calls: what happens between them reaches the log of the state.
        with contextlib.suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(self._announce, change)

    def announce_start(self, start: Start) -> None:
        """There is no session yet: it is being found out whether there may be one, or there is none. On the loop."""
        if self._event_logger is not None:
            readiness = Readiness(granted=False, workers=0, workspaces=0, ranks=1, kernel=False)
            phase = Phase.SUBMITTING if start.reason is None else Phase.FAILED
            elapsed_s = max(0.0, time.time() - start.asked_at)
            change = SessionChange("", self._kernel_id, phase, readiness, start.sentence, start.reason, elapsed_s)
            self._event_logger.emit(schema_id=SCHEMA_ID, data=change.as_event())

    def still_checking(self) -> None:
        """For the log, once it takes long."""
        self._log.info("Kernel %s: %s", self._kernel_id, CHECKING)

    def _announce(self, change: SessionChange | Notice) -> None:
        if isinstance(change, SessionChange):
            self._announce_change(change)
        else:
            self._announce_notice(change)

    def _announce_notice(self, notice: Notice) -> None:
        self._log.warning("Session %s: %s", notice.workload_id[:8], notice.sentence)
        schema = LEASE_SCHEMA_ID if isinstance(notice, LeaseNotice) else WALLTIME_SCHEMA_ID
        if self._event_logger is not None:
            self._event_logger.emit(schema_id=schema, data=notice.as_event(self._kernel_id))

    def _announce_change(self, change: SessionChange) -> None:
        if change.sentence != self._logged:  # a change of phase alone is an event, and says nothing new to a reader
            self._log.info("Session %s: %s", change.workload_id[:8], change.sentence)
            self._logged = change.sentence
        if self._event_logger is not None:
            self._event_logger.emit(schema_id=SCHEMA_ID, data=change.as_event())


def register(event_logger: EventLogger) -> None:
    """Make our schemas known to a server's event logger. Safe to repeat."""
    for path in SCHEMA_PATHS:
        with contextlib.suppress(SchemaRegistryException):  # another session of this server was here before
            event_logger.register_event_schema(path)
