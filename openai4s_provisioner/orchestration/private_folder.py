"""Folders that only their owner may enter: our state, and what is exchanged with the nodes."""

from __future__ import annotations

import os
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
