"""What a BATCH leaves beside its attempt: the record of its command's end, and its output, kept when the rest goes.

Both were written by our own worker, outside of the sandbox, in a folder that the command cannot see. A record that
cannot be read is no record. Raises OSError only where files are kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from .models import CommandExit
from .private_folder import prepare_folder
from .reasons import Reason

RECORD_NAME = "exit.json"
_OUTPUT = "output.*.log"
_KEPT = 50  # commands whose output is kept
_LARGEST_RECORD_BYTES = 64 * 1024


def read_exit(attempt_dir: Path) -> CommandExit | None:
    """How the command ended; None while nothing is written down."""
    try:
        descriptor = os.open(attempt_dir / RECORD_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            record = json.loads(file.read(_LARGEST_RECORD_BYTES))
        return _exit_of(record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _exit_of(record: dict[str, Any]) -> CommandExit:
    reason = record.get("reason")
    started = record.get("started_at")
    return CommandExit(
        exit_code=None if record["exit_code"] is None else int(record["exit_code"]),
        signal=None if record["signal"] is None else int(record["signal"]),
        ended_at=float(record["ended_at"]),
        asked=str(record["asked"]),
        reason=None if reason is None else Reason(reason),
        detail=str(record.get("detail", "")),
        started_at=None if started is None else float(started),
    )


def kept_output(state_dir: Path, workload_id: str) -> Path:
    return state_dir / "batch" / workload_id


def keep_output(attempt_dir: Path, state_dir: Path, workload_id: str) -> None:
    """Move what the command printed to where it stays; the oldest kept output goes. Safe to repeat."""
    kept = kept_output(state_dir, workload_id)
    for folder in (state_dir, kept.parent, kept):
        prepare_folder(folder)
    for path in sorted(attempt_dir.glob(_OUTPUT)):
        draft = kept / f".{path.name}.part"  # the folders may lie on different disks
        shutil.copyfile(path, draft)
        draft.rename(kept / path.name)
        path.unlink()
    _prune(kept.parent)


def _prune(folder: Path) -> None:
    found: list[tuple[float, Path]] = []
    for each in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append((each.stat().st_mtime, each))
    for _, oldest in sorted(found, reverse=True)[_KEPT:]:
        shutil.rmtree(oldest, ignore_errors=True)
