"""Proof that every rank sees the very workspace that we see: a nonce in it, and an answer to it per rank.

The answer's name and content come from inside a sandbox, so they are read with suspicion: only the expected name,
no symbolic link, a plain small file. A network file system may show a fresh file late; the caller repeats.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import stat
from pathlib import Path

_MAX_ANSWER_BYTES = 4096


def nonce_name(allocation_id: str) -> str:
    return f".openai4s-nonce-{allocation_id}"


def answer_name(allocation_id: str, rank: int) -> str:
    return f"{nonce_name(allocation_id)}.rank-{rank}"


def place_nonce(workspace: Path, allocation_id: str, nonce: str) -> None:
    """Write the nonce file anew. Raises OSError."""
    path = workspace / nonce_name(allocation_id)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(nonce)
        file.flush()
        os.fsync(file.fileno())


def answer_holds(workspace: Path, allocation_id: str, rank: int, nonce: str) -> bool:
    """Whether the answer of `rank` is there, as seen from here, and holds the nonce. "Not there" raises nothing."""
    path = workspace / answer_name(allocation_id, rank)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        answer = file.read(_MAX_ANSWER_BYTES)
    return hmac.compare_digest(answer.strip(), nonce.encode())


def remove_proofs(workspace: Path, allocation_id: str, ranks: int) -> None:
    """Take the nonce and every answer away. A workspace that is gone has none."""
    for name in (nonce_name(allocation_id), *(answer_name(allocation_id, rank) for rank in range(ranks))):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            (workspace / name).unlink()
