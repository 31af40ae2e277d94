"""The path of a notebook: as the file system has it, and as a Jupyter server's own interfaces name it. Pure."""

from __future__ import annotations

import os


def shortened(path: str, root: str) -> str:
    """Relative to the server's root folder, if it lies there; else as it is."""
    folder = os.path.abspath(os.path.expanduser(root)) if root else ""
    if folder and os.path.commonpath([folder, os.path.abspath(path)]) == folder:
        return os.path.relpath(path, folder).replace(os.sep, "/")
    return path
