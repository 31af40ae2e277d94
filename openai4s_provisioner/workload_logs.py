"""What a session's workers logged, and what a command printed: whole lines, each with the place behind it.

A reader goes on from such a place, so that whoever lost the connection misses no line and gets none twice. It keeps the
files open that it has found: what is written while a session ends is read though its folder is gone by then. It reads
files of ours by ids that come from the store, never by a name that a caller chose, and a bounded part at once.
"""

from __future__ import annotations

import contextlib
import heapq
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from .app_values import AppSettings
from .orchestration.attempt import KEPT_LOG_BYTES
from .orchestration.batch_files import kept_output
from .orchestration.models import Allocation, Kind, Workload
from .transport.bounded_log import end_of, read_log

_MOST_BYTES = 1024 * 1024
_PLACE = re.compile(r"([0-9]{1,9}):([0-9]{1,15}(?:,[0-9]{1,15})*)")
_STAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2},[0-9]{3}")  # as workers begin their lines


@dataclass(frozen=True)
class Place:
    """Where a reader is: in which attempt of a workload, and behind how many bytes of each log that it reads."""

    epoch: int
    positions: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """None for what no reader has given out."""
        found = _PLACE.fullmatch(text)
        return None if found is None else cls(int(found[1]), tuple(map(int, found[2].split(","))))

    def __str__(self) -> str:
        return f"{self.epoch}:{','.join(map(str, self.positions))}"


@dataclass(frozen=True)
class LogLine:
    """One line; `place` is the one behind it."""

    text: str
    place: Place


class LogReader:
    """Reads one log, or those of several ranks as one. For one thread at a time; to be closed."""

    def __init__(
        self, settings: AppSettings, workload: Workload, ranks: Sequence[int], after: Place | None = None
    ) -> None:
        """`ranks`: whose logs of a session. `after`: None begins with the last part of what is there."""
        self._settings = settings
        self._workload = workload
        self._ranks = tuple(ranks)
        self._epoch = 0 if after is None else after.epoch
        self._starts = [-1] * len(self._ranks) if after is None else list(after.positions)
        self._sources: list[_Source] = []

    def read(self, allocation: Allocation, is_over: bool) -> list[LogLine]:
        """What came since, at most about a megabyte of each rank. `is_over`: nothing more will be written."""
        told: list[LogLine] = []
        if self._epoch not in (0, allocation.epoch):  # the attempt that was read was lost: first what it left, then why
            told = self._lines(is_over=True)
            self.close()
            self._starts = [0] * len(self._ranks)
            self._epoch = allocation.epoch
            told.append(LogLine(f"-- attempt {allocation.epoch}: the one before it was lost --", self._place()))
        self._epoch = allocation.epoch
        if not self._sources:
            self._sources = [
                self._source(allocation, rank, at) for rank, at in zip(self._ranks, self._starts, strict=True)
            ]
        return told + self._lines(is_over)

    def close(self) -> None:
        for each in self._sources:
            each.close()
        self._sources = []

    def _lines(self, is_over: bool) -> list[LogLine]:
        """Those of several ranks by their time, each with its rank before it."""
        labels = [f"[{rank}] " if len(self._ranks) > 1 else "" for rank in self._ranks]
        found: list[LogLine] = []
        streams = [_stamped(number, source.more(is_over)) for number, source in enumerate(self._sources)]
        for _, number, text, position in heapq.merge(*streams, key=lambda each: each[0]):
            self._sources[number].position = position
            found.append(LogLine(labels[number] + text, self._place()))
        return found

    def _place(self) -> Place:
        positions = [each.position for each in self._sources] or self._starts
        return Place(self._epoch, tuple(max(0, each) for each in positions))

    def _source(self, allocation: Allocation, rank: int, position: int) -> _Source:
        live = self._settings.exchange_dir / "attempts" / allocation.allocation_id
        if self._workload.kind is Kind.BATCH:
            kept = kept_output(self._settings.state_dir, self._workload.workload_id)
            return _Output((str(live), str(kept)), position)
        name = f"worker-{rank}.log"
        return _WorkerLog(
            live / name, self._settings.state_dir / "logs" / f"{allocation.allocation_id}.{name}", position
        )


_Found = tuple[str, int]  # a line, and the position behind it


class _Source(Protocol):
    """One log. `position` is where a reader is, negative before it began; whoever takes lines moves it."""

    position: int

    def more(self, is_over: bool) -> list[_Found]: ...

    def close(self) -> None: ...


class _WorkerLog:
    """A file that grows, is kept elsewhere, cut to its end, once its attempt has failed, and vanishes otherwise."""

    def __init__(self, live: Path, kept: Path, position: int) -> None:
        self.position = position
        self._live, self._kept = live, kept
        self._file: BinaryIO | None = None

    def more(self, is_over: bool) -> list[_Found]:
        if self._file is None and not self._open():
            return []
        assert self._file is not None
        is_cut = False
        if self.position < 0:
            self.position = max(0, self._file.seek(0, 2) - _MOST_BYTES)
            is_cut = self.position > 0
        self._file.seek(self.position)
        return _whole_lines(self._file.read(_MOST_BYTES), self.position, is_over, is_cut)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> bool:
        for path in (self._live, self._kept):
            with contextlib.suppress(OSError):
                self._file = path.open("rb")
                break
        if self._file is None:
            return False
        size = self._file.seek(0, 2)
        if self.position > size or (path == self._kept and self.position > 0 and size >= KEPT_LOG_BYTES):
            self.position = size  # what was cut off has moved everything: better none than lines that come twice
        return True


class _Output:
    """What a command printed, in segments, of which the oldest go."""

    def __init__(self, folders: Sequence[str], position: int) -> None:
        self.position = position
        self._folders = folders

    def more(self, is_over: bool) -> list[_Found]:
        is_cut = False
        if self.position < 0:
            self.position = max(0, max(map(end_of, self._folders)) - _MOST_BYTES)
            is_cut = self.position > 0
        at, pieces = self.position, b""
        missed = 0
        while len(pieces) < _MOST_BYTES:
            piece = read_log(self._folders, at + len(pieces) + missed, _MOST_BYTES - len(pieces))
            if not piece.data or (piece.missed and pieces):
                break
            missed += piece.missed
            pieces += piece.data
        found = _whole_lines(pieces, at + missed, is_over, is_cut or missed > 0)
        if missed and not is_cut:
            found.insert(0, (f"({missed} bytes of earlier output were dropped)", at + missed))
        return found

    def close(self) -> None:
        pass


def _whole_lines(data: bytes, begin: int, is_over: bool, is_cut: bool) -> list[_Found]:
    """The lines of `data`, which begins at `begin`; the last one only if it ended, or nothing follows it."""
    is_full = len(data) >= _MOST_BYTES
    if is_cut and b"\n" in data:  # it begins within a line
        skipped = data.index(b"\n") + 1
        data, begin = data[skipped:], begin + skipped
    if not (is_over and not is_full) and not (is_full and b"\n" not in data):
        data = data[: data.rfind(b"\n") + 1]
    found: list[_Found] = []
    for line in data.split(b"\n"):
        begin += len(line) + 1
        text = line.decode("utf-8", errors="replace").rstrip("\r")
        found.append((text.rpartition("\r")[2], begin))  # of what was written over and over, the last
    last, end = found.pop()
    if last:  # it has no end of its own
        found.append((last, end - 1))
    return found


def _stamped(number: int, lines: Sequence[_Found]) -> Iterator[tuple[str, int, str, int]]:
    """With the time that each begins with, or that of the one before it, and the number of its source."""
    stamp = ""
    for text, position in lines:
        found = _STAMP.match(text)
        stamp = stamp if found is None else max(stamp, found[0])
        yield stamp, number, text, position
