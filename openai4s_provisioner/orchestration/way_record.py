"""What a worker that has not come through yet leaves beside its attempt: which addresses it dialled, and what failed.

Written by our own worker, outside of the sandbox. It is a reason for a person to read, and decides nothing: a record
that is missing or cannot be read is no reason.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

_NAME = "way-{rank}.json"  # the worker knows this name, too
_LARGEST_BYTES = 64 * 1024
_MOST_NAMED = 4
_MOST_CHARS = 300


def failed_ways(attempt_dir: Path, rank: int) -> str:
    """Each address and the cause, for a person; "" while nothing is known to have failed."""
    try:
        path = attempt_dir / _NAME.format(rank=rank)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            failed = json.loads(file.read(_LARGEST_BYTES))["failed"]
        told = [f"{_shown(str(each['address']))}: {str(each['cause'])[:_MOST_CHARS]}" for each in failed[:_MOST_NAMED]]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return "; ".join(told)


def _shown(address: str) -> str:
    """Host and port of a network's address, which is what a firewall is about."""
    return address.removeprefix("tls:")[:_MOST_CHARS]
