"""The receipts: what this machine durably knows of every allocation, one folder per token.

    receipts/lock                 held while anything is decided about a token
    receipts/<token>/claim        written and synced before anything is started
    receipts/<token>/launch.lock  held by submitter and shim until `started` exists: free = no launch under way
    receipts/<token>/started      the shim's identity; created exclusively, so a token is launched at most once
    receipts/<token>/worker       the worker's exit, while its descendants live on
    receipts/<token>/cancel       the end was asked for
    receipts/<token>/limit        a later time limit than it was started with
    receipts/<token>/ended        how it ended, written by the shim as its last act

Reads and writes files only: it knows no process and decides nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai4s_provisioner.orchestration.errors import CouldNotAsk

from . import shim

_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,199}")
_CLAIM, _LAUNCH_LOCK, _LOG = "claim", "launch.lock", "shim.log"
_RETRY_S = 0.02


@dataclass(frozen=True)
class Claim:
    allocation_id: str
    workload_id: str
    attempt_dir: str
    claimed_at: float  # seconds since the Unix epoch


@dataclass(frozen=True)
class Started:
    """Who leads the allocation. A pid means nothing without its start time, boot and host."""

    pid: int
    start_time: int
    boot_id: str
    host: str
    allocation_id: str
    started_at: float
    time_limit_s: float = 0.0  # as it was started; 0 = none


@dataclass(frozen=True)
class Exit:
    exit_code: int | None
    signal: int | None


@dataclass(frozen=True)
class Ended:
    how: str
    exit: Exit
    detail: str = ""


@dataclass(frozen=True)
class Receipt:
    token: str
    claim: Claim | None
    started: Started | None
    worker: Exit | None
    ended: Ended | None
    cancel_asked: bool
    extended_limit_s: float = 0.0  # the time limit that took the place of the first one; 0 = none did

    @property
    def ends_at(self) -> float | None:
        """When its time is over; None where there is no limit."""
        limit_s = self.extended_limit_s or (self.started.time_limit_s if self.started else 0.0)
        return self.started.started_at + limit_s if self.started is not None and limit_s > 0 else None


class Receipts:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def locked(self, wait_s: float = 10.0) -> Iterator[None]:
        """Exclusive among threads and processes. Raises CouldNotAsk when it is not had in time."""
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # `parents` would not pass the mode on
        self.folder.mkdir(mode=0o700, exist_ok=True)
        path = self.folder / "lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + wait_s
            while not _try_lock(descriptor):
                if time.monotonic() >= deadline:
                    raise CouldNotAsk(f"{path} has been held by another process for {wait_s:g} seconds")
                time.sleep(_RETRY_S)
            try:
                yield
            finally:
                # Not left to the close: a process forked meanwhile may keep a copy of the descriptor.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def is_absent(self, token: str) -> bool:
        """Whether there is certainly nothing under this token."""
        return _is_absent(self.folder_of(token))

    def tokens(self) -> list[str]:
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        return [name for name in names if is_token(name) and name != "lock"]

    def read(self, token: str) -> Receipt | None:
        """None: there is certainly nothing under this token. Raises CouldNotAsk when it cannot be read."""
        if not is_token(token):
            return None
        folder = self.folder / token
        try:
            return self._read(token, folder)
        except (OSError, ValueError, TypeError, KeyError) as error:
            if _is_absent(folder):  # never there, or removed while we read
                return None
            raise CouldNotAsk(f"the receipt {folder} cannot be read: {error}") from error

    def look(self, token: str) -> tuple[Receipt | None, bool]:
        """The receipt, and whether its launch was under way; asked in the order that misses none."""
        launching = is_token(token) and self.is_launching(token)
        return self.read(token), launching

    def _read(self, token: str, folder: Path) -> Receipt:
        names = set(os.listdir(folder))
        claim = _load(folder / _CLAIM) if _CLAIM in names else None
        started = _load(folder / shim.STARTED) if shim.STARTED in names else None
        worker = _load(folder / shim.WORKER) if shim.WORKER in names else None
        ended = _load(folder / shim.ENDED) if shim.ENDED in names else None
        limit = _load(folder / shim.LIMIT) if shim.LIMIT in names else None
        return Receipt(
            token=token,
            claim=Claim(**claim) if claim else None,
            started=Started(**started) if started else None,
            worker=_exit(worker) if worker else None,
            ended=Ended(ended["how"], _exit(ended), ended.get("detail", "")) if ended else None,
            cancel_asked=shim.CANCEL in names,
            extended_limit_s=float(limit["time_limit_s"]) if limit else 0.0,
        )

    def claim(self, token: str, claim: Claim) -> None:
        """Durable when it returns. An abandoned claim of the same token is taken over. Needs the lock."""
        folder = self.folder_of(token)
        folder.mkdir(mode=0o700, exist_ok=True)
        shim.sync_folder(str(self.folder))
        shim.publish(str(folder / _CLAIM), vars(claim))

    def take_launch_lock(self, token: str) -> int | None:
        """A descriptor that holds the launch lock, or None while a launch of this token is under way."""
        path = self.folder_of(token) / _LAUNCH_LOCK
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if _try_lock(descriptor):
            return descriptor
        os.close(descriptor)
        return None

    def is_launching(self, token: str) -> bool:
        try:
            descriptor = os.open(self.folder_of(token) / _LAUNCH_LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _try_lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def ask_cancel(self, token: str) -> None:
        shim.publish(str(self.folder_of(token) / shim.CANCEL), {"asked_at": time.time()})

    def set_limit(self, token: str, time_limit_s: float) -> None:
        """A new time limit, counted from the start as the first one. Needs the lock."""
        path = self.folder_of(token) / shim.LIMIT
        draft = path.with_suffix(".new")
        draft.unlink(missing_ok=True)
        shim.publish(str(draft), {"time_limit_s": time_limit_s})
        os.rename(draft, path)

    def remove(self, token: str) -> None:
        """Gone in one step for every reader; a late shim finds no folder to publish in. Needs the lock."""
        folder = self.folder_of(token)
        grave = self.folder / f".{token}.removed"
        with contextlib.suppress(FileNotFoundError):
            os.rename(folder, grave)
        shutil.rmtree(grave, ignore_errors=True)

    def log_of(self, token: str) -> Path:
        return self.folder_of(token) / _LOG

    def folder_of(self, token: str) -> Path:
        if not is_token(token):
            raise ValueError(f"{token!r} cannot name a receipt")
        return self.folder / token


def is_token(text: str) -> bool:
    return _TOKEN.fullmatch(text) is not None


def _is_absent(folder: Path) -> bool:
    try:
        folder.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _load(path: Path) -> dict[str, Any]:
    record = json.loads(path.read_bytes())
    if not isinstance(record, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return record


def _exit(record: dict[str, Any]) -> Exit:
    return Exit(record["exit_code"], record["signal"])
