"""Equal slots in one unlinked temporary file: where a spool puts what memory cannot hold.

The file is made at the first write and vanishes with its descriptor, whatever kills us. A disk that fails is given up
at once and for good: the spool then lives within its memory. Knows nothing of what it stores.
"""

from __future__ import annotations

import logging
import os
import tempfile
from typing import IO

_log = logging.getLogger(__name__)


class SlotFile:
    def __init__(self, folder: str | os.PathLike[str] | None, slot_bytes: int, slots: int) -> None:
        self._folder = folder
        self._slot_bytes = slot_bytes
        self._slots = slots
        self._free: list[int] = []
        self._used = 0  # slots that the file is long
        self._file: IO[bytes] | None = None

    def write(self, data: bytes | bytearray) -> int | None:
        """The slot that now holds `data`; None when all are taken or the disk fails."""
        if not self._slots or (not self._free and self._used >= self._slots):
            return None
        slot = self._free.pop() if self._free else self._used
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            written = os.pwrite(self._file.fileno(), data, slot * self._slot_bytes)
        except OSError as error:
            self._give_up(error.strerror or str(error))
            return None
        if written != len(data):
            self._give_up("no space left")
            return None
        self._used = max(self._used, slot + 1)
        return slot

    def read(self, slot: int, start: int, size: int) -> bytes:
        assert self._file is not None
        data = os.pread(self._file.fileno(), size, slot * self._slot_bytes + start)
        if len(data) != size:
            raise OSError(f"the spool file has {len(data)} of {size} bytes")
        return data

    def free(self, slot: int) -> None:
        self._free.append(slot)
        if len(self._free) == self._used and self._file is not None:
            self._free.clear()
            self._used = 0
            self._file.truncate(0)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._free.clear()
        self._used = 0

    def _give_up(self, reason: str) -> None:
        """No more writes; what was written can still be read."""
        _log.warning("the spool on disk is given up: %s", reason)
        self._slots = 0
