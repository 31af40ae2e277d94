"""What a node sees of the file system: all of this machine's, until something is hidden from it.

Each node's daemon has a table of mounts of its own, so that a folder can be missing on one node and be there on the
others. Needs root.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from .errors import LabError

OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private", "--")


def hide(pid: int, path: Path) -> None:
    """From now on the node of this daemon has an empty folder, or a file that cannot be run, at `path`."""
    what = ["-t", "tmpfs", "none"] if path.is_dir() else ["--bind", "/dev/null"]
    _in_view(pid, "mount", *what, str(path))


def show_at(pid: int, path: Path, place: Path) -> None:
    """From now on the node of this daemon has the folder `path` at `place` as well, which `show` undoes."""
    _in_view(pid, "mount", "--bind", str(path), str(place))


def show(pid: int, path: Path) -> None:
    """Undo it; a folder that is gone by now has taken its mount along."""
    if f" {path} " in Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8"):
        _in_view(pid, "umount", "-l", str(path))


def is_possible() -> bool:
    return os.geteuid() == 0


def _in_view(pid: int, *command: str) -> None:
    argv = ["nsenter", f"--mount=/proc/{pid}/ns/mnt", "--", *command]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"{' '.join(command)}: {done.stderr.strip()}")
