"""Every route of our REST interface, in one table. rest-api.yml describes the same ones; a test holds them together."""

from __future__ import annotations

from .rest_base import NotThere, SessionsHandler
from .rest_profiles import ProfilesList
from .rest_sessions import OneSession, SessionsList

PREFIX = "/openai4s"
_ID = "([^/]+)"

ROUTES: tuple[tuple[str, type[SessionsHandler]], ...] = (
    (f"{PREFIX}/sessions", SessionsList),
    (f"{PREFIX}/sessions/{_ID}", OneSession),
    (f"{PREFIX}/profiles", ProfilesList),
    (f"{PREFIX}(?:/.*)?", NotThere),
)
