"""Finds processes that a run left behind, by what their command line or environment names.

Sessions are no children of whoever started them, so walking down from a parent would miss them.
"""

from __future__ import annotations

import contextlib
import os

import psutil


def processes_of(text: str) -> list[psutil.Process]:
    """Living processes, other than this one, whose command line or environment holds `text`."""
    return [process for process in psutil.process_iter() if process.pid != os.getpid() and _names(process, text)]


def _names(process: psutil.Process, text: str) -> bool:
    words: list[str] = []
    with contextlib.suppress(psutil.Error):
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        words += process.cmdline()
        # Another account's environment, or that of a confined process, may be closed to us; its command line is not.
        words += [f"{name}={value}" for name, value in process.environ().items()]
    return any(text in word for word in words)


def described(processes: list[psutil.Process]) -> str:
    """One short line for people; what ended meanwhile is left out."""
    lines = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            lines.append(f"{process.pid} {' '.join(process.cmdline())[:160]}")
    return "; ".join(lines)
