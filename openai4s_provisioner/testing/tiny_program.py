"""What the contract suite runs as an allocation: a program whose every step can be seen and steered through a folder.

    python tiny_program.py FOLDER BEHAVIOUR --rank N
    python tiny_program.py worker FOLDER --rank N           in a worker's place; behaves as ``wait``

It leaves ``FOLDER/pid-<pid>`` (its own, and one per descendant it makes) and ``FOLDER/environment`` and then, by
behaviour: ``wait`` ends with the exit code found in ``FOLDER/exit``; ``stubborn`` does the same and ignores SIGTERM;
``family`` first leaves a stubborn descendant in a session of its own; ``orphan`` leaves that descendant and exits 0.
Standard library only, and it imports nothing of ours: it is copied to where allocations can read it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

_LONGEST_LIFE_S = 300  # should a test lose sight of it


def _show_pid(folder: Path) -> None:
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    _write(folder / f"pid-{os.getpid()}", fields[19])  # the start time tells it from a later process with this pid


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.rename(path)


def _wait_for_exit_code(folder: Path) -> int:
    give_up_at = time.monotonic() + _LONGEST_LIFE_S
    while time.monotonic() < give_up_at:
        if (folder / "exit").exists():
            return int((folder / "exit").read_text())
        time.sleep(0.02)
    return 99


def _leave_descendant(folder: Path) -> None:
    """Double fork and a session of its own: nobody's child, in nobody's process group."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _show_pid(folder)
    os._exit(_wait_for_exit_code(folder))


def main(argv: list[str]) -> int:
    folder, behaviour = (Path(argv[1]), "wait") if argv[0] == "worker" else (Path(argv[0]), argv[1])
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _write(folder / "environment", json.dumps(dict(os.environ)))
    if behaviour in ("family", "orphan"):
        _leave_descendant(folder)
    _show_pid(folder)
    if behaviour == "orphan":
        return 0
    return _wait_for_exit_code(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
