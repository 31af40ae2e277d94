"""Writes everything to a pipe whose reader may be slow, or gone, without ever waiting for it."""

from __future__ import annotations

import os

from ..transport.loop import Loop


class PipeWriter:
    """Owns `fd`, and closes it once everything is written or nobody reads any more."""

    def __init__(self, loop: Loop, fd: int, data: bytes) -> None:
        self._loop = loop
        self._fd = fd
        self._data = memoryview(data)
        os.set_blocking(fd, False)

    def send(self) -> None:
        try:
            while self._data:
                self._data = self._data[os.write(self._fd, self._data) :]
        except BlockingIOError:
            self._loop.watch(self._fd, writable=self.send)
            return
        except BrokenPipeError:
            pass  # that nobody reads any more is found out, and reported, elsewhere
        self._loop.unwatch(self._fd)
        os.close(self._fd)
