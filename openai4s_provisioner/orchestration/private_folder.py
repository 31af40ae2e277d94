"""Folders that only their owner may enter, and private files in them that several processes agree on.

Our state, and what is exchanged with the nodes. A file that others could read is refused, never repaired in silence.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from pathlib import Path

from .errors import StateError


def prepare_folder(folder: Path) -> None:
    """Make a private folder, or make sure that it is one. Raises StateError for somebody else's, OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = folder.stat()
    if about.st_uid != os.geteuid():
        raise StateError(f"{folder}: this folder belongs to somebody else. Name a folder of your own.")
    if stat.S_IMODE(about.st_mode) & 0o077:
        folder.chmod(0o700)


def publish_once(path: Path, content: bytes) -> None:
    """Put a 0600 file there unless one is there already: of several processes the first one's stays. Raises OSError."""
    draft = _draft(path, content)
    try:
        with contextlib.suppress(FileExistsError):  # another process was first: its file is the one
            os.link(draft, path)
    finally:
        draft.unlink()


def replace_private(path: Path, content: bytes) -> None:
    """Put a 0600 file there; whoever reads sees the old one or the new one, whole. Raises OSError."""
    os.replace(_draft(path, content), path)


def read_private(path: Path, most: int) -> bytes:
    """At most `most` + 1 bytes of a regular file that only its owner can read. Raises OSError, StateError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise StateError(f"{path}: this is not a file. Remove it, and start again.")
        content = file.read(most + 1)
    if stat.S_IMODE(about.st_mode) & 0o077:
        raise StateError(f"{path}: this file can be read by others. Run: chmod 600 {path}")
    return content


def _draft(path: Path, content: bytes) -> Path:
    draft = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return draft


def remove_folder(folder: Path) -> None:
    """Remove it with all that it holds. That somebody else removes it at the same moment is no error."""
    while folder.exists():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
