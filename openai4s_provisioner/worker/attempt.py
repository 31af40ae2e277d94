"""The attempt file: what the control plane tells one rank of one allocation, once.

It holds the credential, so it is read and deleted before anything else happens. It refuses a file that somebody else
could have written or read. Nothing of its content may appear in a message or a log.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from dataclasses import dataclass, field
from typing import Any, Callable, TypeVar

from .site import Site

_LARGEST_BYTES = 16 * 1024 * 1024
_VERSION = 1
_SPOOL_MB = 2048
ADDRESS_RECORD = "server.json"  # beside the attempt's files
_SHA256 = re.compile(r"[0-9a-f]{64}")


class AttemptUnusable(Exception):
    """The attempt file is missing, not ours alone, or malformed. The text names the file and what is wrong."""


@dataclass(frozen=True)
class Attempt:
    workload_id: str
    allocation_id: str
    epoch: int
    rank: int
    ranks: int
    credential: str = field(repr=False)
    addresses: tuple[str, ...]
    certificate_sha256: str | None
    workspace: dict[str, Any]
    sandbox: dict[str, Any]
    launch: dict[str, Any] | None = field(repr=False)
    server_grace_s: float
    spool_mb: int
    address_record: str = ""  # the file that says where the server is, should it have moved
    gpus: int = 0  # that the profile asks for
    step_prefix: tuple[str, ...] = ()  # what runs its words once on every rank, where a task can do that


@dataclass(frozen=True)
class BatchAttempt:
    """A BATCH has no server to dial, hence no credential; `workspace` brings the nonce that its folder must hold."""

    workload_id: str
    allocation_id: str
    rank: int
    workspace: dict[str, Any]
    sandbox: dict[str, Any]
    launch: dict[str, Any] = field(repr=False)
    gpus: int = 0


_Attempt = TypeVar("_Attempt", Attempt, BatchAttempt)


def take_attempt(folder: str, rank: int) -> Attempt:
    """Read ``rank-N.json`` and delete it. Raises AttemptUnusable; the file is gone then, too, if it could be read."""
    record = os.path.join(folder, ADDRESS_RECORD)
    return _take(folder, rank, lambda value: _understand(value, record))


def take_batch(folder: str, rank: int) -> BatchAttempt:
    """The same for the worker of a BATCH."""
    return _take(folder, rank, _understand_batch)


def _take(folder: str, rank: int, understand: Callable[[dict[str, Any]], _Attempt]) -> _Attempt:
    path = os.path.join(folder, f"rank-{rank}.json")
    content = read_private(path)
    with contextlib.suppress(OSError):
        os.unlink(path)
    try:
        attempt = understand(Site.from_environ(os.environ).attempt(json.loads(content)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AttemptUnusable(f"{path} cannot be understood ({type(error).__name__})") from None
    if attempt.rank != rank:
        raise AttemptUnusable(f"{path} is meant for rank {attempt.rank}")
    return attempt


def read_private(path: str) -> bytes:
    """The content of a file that nobody else could have read or written. Raises AttemptUnusable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise AttemptUnusable(f"{path}: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise AttemptUnusable(f"{path} is not a file of this user")
        if stat.S_IMODE(status.st_mode) & 0o177 or status.st_nlink != 1:
            raise AttemptUnusable(f"{path} can be reached by others: it must have mode 0600 and one name")
        content = stream.read(_LARGEST_BYTES + 1)
    if len(content) > _LARGEST_BYTES:
        raise AttemptUnusable(f"{path} is larger than {_LARGEST_BYTES} bytes")
    return content


def read_address_record(path: str) -> tuple[tuple[str, ...], str | None] | None:
    """The server's addresses and its certificate's digest, as it last wrote them down. None: nothing of use there."""
    try:
        value = json.loads(read_private(path))
        addresses = tuple(_text(address) for address in value["addresses"])
        return (addresses, _digest(value["certificate_sha256"])) if addresses else None
    except (AttemptUnusable, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _understand(value: dict[str, Any], address_record: str) -> Attempt:
    if value["version"] != _VERSION:
        raise ValueError("unknown version")
    attempt = Attempt(
        workload_id=_text(value["workload_id"]),
        allocation_id=_text(value["allocation_id"]),
        epoch=int(value["epoch"]),
        rank=int(value["rank"]),
        ranks=int(value["ranks"]),
        credential=_text(value["credential"]),
        addresses=tuple(_text(address) for address in value["addresses"]),
        workspace=dict(value["workspace"]),
        sandbox=dict(value["sandbox"]),
        launch=None if value.get("launch") is None else dict(value["launch"]),
        server_grace_s=float(value["server_grace_s"]),
        spool_mb=max(0, int(value.get("spool_mb", _SPOOL_MB))),
        certificate_sha256=_digest(value["certificate_sha256"]),
        address_record=address_record,
        gpus=int(value.get("gpus", 0)),
        step_prefix=tuple(_text(word) for word in value.get("step_prefix", ())),
    )
    if not attempt.addresses:
        raise ValueError("no address")
    return attempt


def _digest(value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not _SHA256.fullmatch(value)):
        raise ValueError("not a digest")
    return value


def _understand_batch(value: dict[str, Any]) -> BatchAttempt:
    if value["version"] != _VERSION:
        raise ValueError("unknown version")
    attempt = BatchAttempt(
        workload_id=_text(value["workload_id"]),
        allocation_id=_text(value["allocation_id"]),
        rank=int(value["rank"]),
        workspace={name: _text(value["workspace"][name]) for name in ("path", "nonce_name", "nonce")},
        sandbox=dict(value["sandbox"]),
        launch=dict(value["launch"]),
        gpus=int(value.get("gpus", 0)),
    )
    if not attempt.launch["argv"]:
        raise ValueError("no command")
    return attempt


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("an empty or missing text")
    return value
