"""What a Jupyter server's log has of us: our lines, and those of backends, are written as the server writes its own.

A start that was refused, or given up, is no fault of a program: Jupyter logs it with its sentence, and three times with
a traceback of thirty lines, which is left out. Any other error keeps its own.
"""

from __future__ import annotations

import logging
from importlib.metadata import entry_points
from typing import Any

from ..orchestration.errors import ProvisionerError
from ..parts import BACKENDS


class _WithoutTraceback(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ProvisionerError):
            record.exc_info = None
            if str(error) not in record.getMessage():
                record.msg, record.args = f"{record.getMessage()}: {error}", ()
        return True


class ServerLog:
    """Joined to the log of one server, until it is left."""

    def __init__(self, log: Any) -> None:
        self._log: logging.Logger = getattr(log, "logger", log)
        self._handlers = list(self._log.handlers)
        self._filter = _WithoutTraceback()
        packages = {entry.module.partition(".")[0] for entry in entry_points(group=BACKENDS)}
        self._ours = [logging.getLogger(name) for name in sorted({__name__.partition(".")[0], *packages})]

    def join(self) -> None:
        self._log.addFilter(self._filter)
        for logger in self._ours:
            for handler in self._handlers:
                logger.addHandler(handler)

    def leave(self) -> None:
        self._log.removeFilter(self._filter)
        for logger in self._ours:
            for handler in self._handlers:
                logger.removeHandler(handler)
