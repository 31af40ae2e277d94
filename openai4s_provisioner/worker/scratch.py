"""Where a worker keeps its private folder on its node: kernel sockets, private temp, spools.

Short, so that sockets fit below it. Its name follows from the allocation, so that whoever outlives a killed worker
can tell whose it was.
"""

from __future__ import annotations

import hashlib
import os
import tempfile

from ..transport.locked_folder import PrivateFolder, private_path

_LONGEST_PARENT_BYTES = 40


def make_scratch(allocation_id: str, rank: int) -> PrivateFolder:
    """This worker's folder; what dead workers left behind goes first."""
    return PrivateFolder(scratch_parent(), _name(allocation_id, rank))


def scratch_path(allocation_id: str, rank: int) -> str:
    return private_path(scratch_parent(), _name(allocation_id, rank))


def scratch_parent() -> str:
    preferred = tempfile.gettempdir()
    return preferred if len(os.fsencode(preferred)) <= _LONGEST_PARENT_BYTES else "/tmp"  # noqa: S108


def _name(allocation_id: str, rank: int) -> str:
    return hashlib.sha256(f"{allocation_id}/{rank}".encode()).hexdigest()[:16]
