"""Stops a process of a session the moment it appears (SIGSTOP), so that what it should do does not happen."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading

import psutil


class Freezer:
    """Watches for a process whose command line matches `pattern`, at or below a process that names `place`."""

    def __init__(self, pattern: str, place: str) -> None:
        self._pattern = re.compile(pattern)
        self._place = place
        self._frozen: list[psutil.Process] = []
        self._known = set(psutil.pids())
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def has_frozen(self) -> bool:
        return bool(self._frozen)

    def thaw(self) -> None:
        """Let it go on, and watch no more."""
        self._over.set()
        self._thread.join()
        for process in self._frozen:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)

    def _watch(self) -> None:
        while not self._frozen and not self._over.wait(0.01):
            for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
                if pid not in self._known and not self._over.is_set():
                    with contextlib.suppress(psutil.Error):
                        self._look_at(psutil.Process(pid))

    def _look_at(self, process: psutil.Process) -> None:
        words = process.cmdline()
        if self._pattern.search(" ".join(words)):
            family = [process, *process.parents()]
            if any(self._place in word for each in family for word in each.cmdline()):
                process.send_signal(signal.SIGSTOP)
                self._frozen.append(process)
