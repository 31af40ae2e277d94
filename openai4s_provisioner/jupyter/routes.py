"""Every route of our REST interface, in one table. rest-api.yml describes the same ones; a test holds them together."""

from __future__ import annotations

from .rest_base import NotThere, SessionsHandler
from .rest_launches import Launches, StartAgain
from .rest_logs import BatchLog, SessionLog
from .rest_profiles import ProfilesList
from .rest_sessions import (
    BatchesList,
    ExtendSession,
    KeepSession,
    OneBatch,
    OneSession,
    SessionsList,
    StopBatch,
    StopSession,
)
from .rest_tasks import CancelTask, SessionTasks

PREFIX = "/openai4s"
_ID = "([^/]+)"

ROUTES: tuple[tuple[str, type[SessionsHandler]], ...] = (
    (f"{PREFIX}/sessions", SessionsList),
    (f"{PREFIX}/sessions/{_ID}", OneSession),
    (f"{PREFIX}/sessions/{_ID}/stop", StopSession),
    (f"{PREFIX}/sessions/{_ID}/keep", KeepSession),
    (f"{PREFIX}/sessions/{_ID}/extend", ExtendSession),
    (f"{PREFIX}/sessions/{_ID}/start-again", StartAgain),
    (f"{PREFIX}/sessions/{_ID}/log", SessionLog),
    (f"{PREFIX}/sessions/{_ID}/tasks", SessionTasks),
    (f"{PREFIX}/tasks/{_ID}/cancel", CancelTask),
    (f"{PREFIX}/batches", BatchesList),
    (f"{PREFIX}/batches/{_ID}", OneBatch),
    (f"{PREFIX}/batches/{_ID}/stop", StopBatch),
    (f"{PREFIX}/batches/{_ID}/log", BatchLog),
    (f"{PREFIX}/profiles", ProfilesList),
    (f"{PREFIX}/launches", Launches),
    (f"{PREFIX}(?:/.*)?", NotThere),
)
