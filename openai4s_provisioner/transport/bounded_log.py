"""A log of bounded size that is written in one process and followed in another, perhaps through a shared folder.

It lies in segments whose names say where in the whole they begin: ``output.000000002048.log`` holds what follows the
first 2048 bytes. Past its bound the oldest segment goes. So a reader that knows its position needs no lock, finds its
place again after the files were moved, and can say how much it missed. Writing never fails: a full disk must not stop
what is being logged.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import NamedTuple

SEGMENT_BYTES = 2 * 1024 * 1024
SEGMENTS = 4
_PREFIX, _SUFFIX = "output.", ".log"


class LogWriter:
    """Writes into `folder`, which exists, behind what is there already."""

    def __init__(self, folder: str, segment_bytes: int = SEGMENT_BYTES, segments: int = SEGMENTS) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._segments = segments
        self._begin = 0
        self._fd = -1
        self.written = end_of(folder)  # of the whole, dropped bytes included

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            if self._fd < 0 or self.written - self._begin >= self._segment_bytes:
                self._next_segment()
            piece = left[: max(1, self._segment_bytes - (self.written - self._begin))]
            self._append(piece)
            self.written += len(piece)
            left = left[len(piece) :]

    def sync(self) -> None:
        """What was written so far survives a crash of the machine."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, piece: memoryview) -> None:
        try:
            while piece:
                piece = piece[os.write(self._fd, piece) :]
        except OSError:
            self.close()  # the next segment begins behind the gap

    def _next_segment(self) -> None:
        self.close()
        self._begin = self.written
        path = os.path.join(self._folder, f"{_PREFIX}{self._begin:015d}{_SUFFIX}")
        with contextlib.suppress(OSError):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            for begin in segments_in(self._folder)[: -self._segments]:
                os.unlink(segment_path(self._folder, begin))


def end_of(folder: str) -> int:
    """How much was written in all, dropped bytes included."""
    begins = segments_in(folder)
    if not begins:
        return 0
    try:
        return begins[-1] + os.stat(segment_path(folder, begins[-1])).st_size
    except FileNotFoundError:  # moved between the two looks
        return begins[-1]


class Piece(NamedTuple):
    """What a look at a log gave: bytes, the position behind them, and how many before them are gone for good."""

    data: bytes
    position: int
    missed: int


def read_log(folders: Sequence[str], position: int, size: int = 1024 * 1024) -> Piece:
    """Read on from `position`; empty when there is nothing more yet.

    `folders`: where the log lies, or is being moved to, piece by piece.
    """
    found = [_read(folder, position, size) for folder in folders]
    return min((piece for piece in found if piece.data), key=_missed, default=Piece(b"", position, 0))


def _missed(piece: Piece) -> int:
    return piece.missed


def _read(folder: str, position: int, size: int) -> Piece:
    begins = segments_in(folder)
    for number, begin in enumerate(begins):
        following = begins[number + 1] if number + 1 < len(begins) else None
        if following is not None and following <= position:
            continue
        start = max(begin, position)
        try:
            with open(segment_path(folder, begin), "rb") as file:
                file.seek(start - begin)
                data = file.read(size)
        except OSError:
            continue  # dropped, or moved, between the two looks
        if data:
            return Piece(data, start + len(data), start - position)
    return Piece(b"", position, 0)


def segments_in(folder: str) -> list[int]:
    """Where the segments of a log begin, in order; none when there is no log."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    middles = (name[len(_PREFIX) : -len(_SUFFIX)] for name in names if name.startswith(_PREFIX))
    return sorted(int(middle) for middle in middles if middle.isdigit())


def segment_path(folder: str, begin: int) -> str:
    return os.path.join(folder, f"{_PREFIX}{begin:015d}{_SUFFIX}")
