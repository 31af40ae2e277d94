"""Asks to end (SIGTERM, SIGINT, SIGHUP) as callbacks of a loop."""

from __future__ import annotations

import signal
import socket
from typing import Callable

from ..transport.loop import Loop


class Signals:
    """Signals arrive as bytes on a descriptor: a handler could interrupt the loop while it holds its own lock."""

    def __init__(self, loop: Loop, end: Callable[[str], None]) -> None:
        self._end = end
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, lambda *_: None)
        signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        loop.watch(self._reading.fileno(), readable=self._readable)

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._reading.close()
        self._writing.close()

    def _readable(self) -> None:
        for number in self._reading.recv(64):
            if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                self._end(f"signal {signal.Signals(number).name}")
