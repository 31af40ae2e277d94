"""What a kernel wrote to its stdout and stderr: a bounded log file, and the last lines for the report of its end."""

from __future__ import annotations

import os
from typing import BinaryIO, Protocol

_LOG_BYTES = 1024 * 1024
_TAIL_BYTES = 16 * 1024
_TAIL_LINES = 20


class Output(Protocol):
    """Where the bytes go that a confined process prints."""

    def feed(self, data: bytes) -> None: ...

    def tail(self) -> str: ...

    def close(self) -> None: ...


class KernelOutput:
    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._log: BinaryIO = os.fdopen(descriptor, "wb", buffering=0)
        self._written = 0
        self._end = b""

    def feed(self, data: bytes) -> None:
        self._end = (self._end + data)[-_TAIL_BYTES:]
        try:
            if self._written + len(data) > _LOG_BYTES:
                self._log.seek(0)
                self._log.truncate()
                self._written = self._log.write(b"(earlier output was dropped)\n")
            self._written += self._log.write(data)
        except OSError:
            pass  # a full disk must not stop the kernel; the tail is in memory

    def tail(self) -> str:
        """The last lines, as text."""
        lines = self._end.decode("utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])

    def close(self) -> None:
        self._log.close()
