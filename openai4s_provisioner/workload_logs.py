"""What a session's workers logged, and what a command or a task printed: read while it is written, and afterwards.

Reads files of ours by ids that come from the store, never by a name that a caller chose. Bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .app_values import AppSettings
from .orchestration.batch_files import kept_output
from .orchestration.models import Allocation, Kind, Workload
from .transport.bounded_log import read_log, segments_in

_MOST_BYTES = 1024 * 1024


@dataclass(frozen=True)
class LogPiece:
    """Text from a place in a log on; `position` is the place behind it."""

    text: str
    position: int
    path: str | None
    dropped: int = 0  # bytes before it that are gone for good


def piece_of(settings: AppSettings, workload: Workload, allocation: Allocation, position: int) -> LogPiece:
    """What is there from `position` on; of a negative one, what the last bytes hold."""
    live = settings.exchange_dir / "attempts" / allocation.allocation_id
    if workload.kind is Kind.BATCH:
        return _printed((str(live), str(kept_output(settings.state_dir, workload.workload_id))), position)
    kept = settings.state_dir / "logs" / f"{allocation.allocation_id}.worker-0.log"
    return _logged((live / "worker-0.log", kept), position)


def _logged(files: Sequence[Path], position: int) -> LogPiece:
    for file in files:
        try:
            with file.open("rb") as content:
                size = content.seek(0, 2)
                start = max(0, size - _MOST_BYTES) if position < 0 else min(position, size)
                content.seek(start)
                data = content.read(_MOST_BYTES)
        except OSError:
            continue
        return LogPiece(data.decode("utf-8", errors="replace"), start + len(data), str(file))
    return LogPiece("", max(0, position), None)


def _printed(folders: Sequence[str], position: int) -> LogPiece:
    path = next((folder for folder in folders if segments_in(folder)), None)
    at, data, dropped = max(0, position), b"", 0
    while True:
        piece = read_log(folders, at, _MOST_BYTES)
        if not piece.data:
            break
        data, at, dropped = (data + piece.data)[-_MOST_BYTES:], piece.position, dropped + piece.missed
        if position >= 0:
            break
    return LogPiece(data.decode("utf-8", errors="replace"), at, path, dropped)
