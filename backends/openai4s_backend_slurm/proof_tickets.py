"""What is written down of a proof of isolation that is under way, so that whoever asks next, in any process, goes on.

One private file for each configuration, in the state folder: the job's token and handle, and the folder that it writes
into. Of several processes the first one's stays. Reads and writes files only, so it blocks, and starts no job.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from openai4s_provisioner.orchestration.errors import StateError
from openai4s_provisioner.orchestration.private_folder import (
    prepare_folder,
    publish_once,
    read_private,
    replace_private,
)

FOLDER = "proof-"
_NAME = "proof-"
_LARGEST_BYTES = 1 << 16
_REMOVALS, _AGAIN_S = 20, 0.1


@dataclass(frozen=True)
class Ticket:
    token: str
    folder: str
    began: float  # seconds since the epoch
    made: tuple[str, ...] = ()  # the folders above it that were made for it, the innermost first
    handle: str = ""  # "" while it is not known whether the submission has landed


class ProofTickets:
    """`folder`: the backend's own in the state folder. `exchange_dir`: where proofs have their folders."""

    def __init__(self, folder: Path, exchange_dir: Path) -> None:
        self._folder = folder
        self._exchange_dir = exchange_dir

    def of(self, digest: str) -> Ticket | None:
        """The one under way for this configuration. What cannot be read, or has lost its folder, is none."""
        ticket = self._read(self._path(digest))
        return ticket if ticket is not None and Path(ticket.folder).is_dir() else None

    def keep(self, digest: str, ticket: Ticket) -> Ticket:
        """Write it down unless there is one: the one that counts. Raises OSError, StateError."""
        prepare_folder(self._folder.parent)
        prepare_folder(self._folder)
        path = self._path(digest)
        if path.exists() and self.of(digest) is None:
            path.unlink(missing_ok=True)
        publish_once(path, _content(ticket))
        return self.of(digest) or ticket

    def landed(self, digest: str, ticket: Ticket, handle: str) -> Ticket:
        """Its job is known by now. Raises OSError."""
        known = replace(ticket, handle=handle)
        if self.holds(digest, ticket):
            replace_private(self._path(digest), _content(known))
        return known

    def holds(self, digest: str, ticket: Ticket) -> bool:
        """Whether it is still this one that is under way."""
        found = self.of(digest)
        return found is not None and found.token == ticket.token

    def end(self, digest: str, ticket: Ticket) -> None:
        """Leave nothing of it: file, folder, and the folders that were made for it. Never an obstacle."""
        with contextlib.suppress(OSError):
            if self.holds(digest, ticket):
                self._path(digest).unlink(missing_ok=True)
        remove_folder(ticket)
        with contextlib.suppress(OSError):  # others' proofs, or jobs, are there
            self._folder.rmdir()
            self._folder.parent.rmdir()

    def older_than(self, age_s: float) -> list[tuple[str, Ticket]]:
        """(digest, ticket) of those that nobody has come back for."""
        return [(digest, ticket) for digest, ticket in self._all() if time.time() - ticket.began > age_s]

    def sweep_folders(self, age_s: float) -> None:
        """Folders that a process left that was killed before it could write anything down. Never an obstacle."""
        for folder in list(self._exchange_dir.glob(f"{FOLDER}*")):
            with contextlib.suppress(OSError):
                if time.time() - folder.stat().st_mtime > age_s:
                    shutil.rmtree(folder)

    def _all(self) -> Iterator[tuple[str, Ticket]]:
        for path in list(self._folder.glob(f"{_NAME}*")):
            ticket = self._read(path)
            if ticket is not None:
                yield path.name.removeprefix(_NAME), ticket

    def _path(self, digest: str) -> Path:
        return self._folder / f"{_NAME}{digest}"

    def _read(self, path: Path) -> Ticket | None:
        try:
            content: Any = json.loads(read_private(path, _LARGEST_BYTES))
            made = tuple(map(str, content["made"]))
            token, folder, handle = (str(content[key]) for key in ("token", "folder", "handle"))
            ticket = Ticket(token, folder, float(content["began"]), made, handle)
        except (OSError, StateError, ValueError, KeyError, TypeError):
            return None
        place = Path(ticket.folder)
        return ticket if place.parent == self._exchange_dir and place.name.startswith(FOLDER) else None


def remove_folder(ticket: Ticket) -> None:
    """The folder of a proof, and those that were made for it alone. Never an obstacle.

    The verdict is not the last word of its job, which may write down its own end at this moment.
    """
    for _ in range(_REMOVALS):
        shutil.rmtree(ticket.folder, ignore_errors=True)
        if not os.path.lexists(ticket.folder):
            break
        time.sleep(_AGAIN_S)
    with contextlib.suppress(OSError):  # somebody else uses it by now
        for made in ticket.made:
            Path(made).rmdir()


def _content(ticket: Ticket) -> bytes:
    return json.dumps({"version": 1, **asdict(ticket)}).encode()
