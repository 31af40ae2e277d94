"""The pier's own program: leads one allocation's processes, ends them when asked, writes down how it ended.

    python leader.py FOLDER LOCK GRACE_S LIMIT_S NICE PROGRAM ...

It holds the allocation's lock for as long as any of its processes lives. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

STARTED, CANCEL, ENDED = "started", "cancel", "ended"  # files in an allocation's folder
DEPARTED, TOWED, OVERSTAYED = "departed", "towed", "overstayed"  # the words for an end
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_EVERY_S = 0.1


def main(argv: list[str]) -> int:
    folder, lock, program = Path(argv[0]), int(argv[1]), argv[5:]
    os.set_inheritable(lock, False)  # ours alone: what we start must not keep it
    (folder / STARTED).touch(exist_ok=False)  # a crash before this is "never", from here on it is "once"
    if os.fork():
        return 0  # whoever submitted has its answer
    os.nice(int(argv[4]))
    end = lead(folder, program, float(argv[2]), float(argv[3]))
    (folder / ".ended").write_text(json.dumps(end))
    os.rename(folder / ".ended", folder / ENDED)
    return 0


def lead(folder: Path, program: list[str], grace_s: float, limit_s: float) -> dict[str, object]:
    """Returns when no process of the allocation is left. `limit_s`: 0 is none."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans below us become our children
    signal.signal(signal.SIGTERM, lambda number, frame: (folder / CANCEL).touch())
    first = os.posix_spawn(program[0], program, os.environ)
    exit_code, began, asked_at, word = None, time.monotonic(), 0.0, DEPARTED
    while True:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                exit_code = os.waitstatus_to_exitcode(ended[1]) if ended[0] == first else exit_code
            now = time.monotonic()
            if word == DEPARTED and ((folder / CANCEL).exists() or 0 < limit_s < now - began):
                word, asked_at = TOWED if (folder / CANCEL).exists() else OVERSTAYED, now
                _signal_all(signal.SIGTERM)
            elif word != DEPARTED and now - asked_at > grace_s:
                _signal_all(signal.SIGKILL)
            time.sleep(_LOOK_EVERY_S)
            continue
        return {"word": word, "exit_code": exit_code}


def _signal_all(number: int) -> None:
    for pid in _below(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _below(pid: int) -> Iterator[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                yield int(child)
                yield from _below(int(child))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
