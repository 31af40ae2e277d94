"""Is the folder that this machine calls the workspace really the one the server means, and can it be written to?

The server put a file with a fresh nonce into it. Reading it proves the first, answering with a file beside it the
second; each way it can go wrong has a name of its own. A network file system may show a new file late, so only "it is
not there" is asked again.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

_CODES = {
    errno.EROFS: ("read_only", "it is mounted read-only on this machine"),
    errno.ENOSPC: ("no_space", "there is no space left on it"),
    errno.EDQUOT: ("no_space", "your quota on it is used up"),
    errno.EACCES: ("denied", "this account may not use it on this machine"),
    errno.EPERM: ("denied", "this account may not use it on this machine"),
    errno.ENOTDIR: ("missing", "it is not a folder on this machine"),
    errno.ENOENT: ("missing", "it does not exist on this machine"),
}


@dataclass(frozen=True)
class Proof:
    ok: bool
    code: str
    detail: str = ""
    nonce: str = ""
    answer_name: str = ""


def check_folder(path: str) -> Proof | None:
    """From outside the sandbox, before there is one: None when the folder is there."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        return failed(path, error)
    return None


def prove(path: str, nonce_name: str, rank: int, *, last_try: bool) -> Proof | None:
    """From inside the sandbox. None: the nonce does not show yet, and this was not the last try."""
    missing = check_folder(path)  # opening the folder also makes a network file system look at it anew
    if missing is not None:
        return missing
    try:
        with open(os.path.join(path, nonce_name), encoding="ascii") as file:
            nonce = file.read(4096).strip()
    except FileNotFoundError:
        nonce = ""
    except (OSError, ValueError) as error:
        return failed(path, error)
    if not nonce:
        return _wrong_mount(path) if last_try else None
    answer_name = f"{nonce_name}.rank-{rank}"
    try:
        _write_answer(os.path.join(path, answer_name), nonce)
    except OSError as error:
        return failed(path, error)
    return Proof(True, "ready", "", nonce, answer_name)


def failed(path: str, error: Exception) -> Proof:
    """What an error in using the workspace means."""
    unreadable = ("unreadable", f"it cannot be read on this machine ({error})")
    code, words = _CODES.get(getattr(error, "errno", 0) or 0, unreadable)
    return Proof(False, code, f"the workspace {path} cannot be used: {words}")


def _wrong_mount(path: str) -> Proof:
    words = "what this machine has at that place is another folder than the one on the Jupyter server"
    return Proof(False, "wrong_mount", f"the workspace {path} cannot be used: {words}")


def _write_answer(path: str, nonce: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, nonce.encode("ascii"))
        os.fsync(descriptor)  # a quota may only speak up here
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)
