"""Holds everything that one rank of a job starts, on the node: nothing of it outlives the worker, nothing escapes.

It adopts what the worker leaves, waits for it, and ends what does not end; then it ends itself as the worker did. It is
copied beside the attempt and run by whatever Python the node has, from 3.9 on, with the standard library alone. It
holds no secret.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36
_POLITE_S = 10.0  # for what the worker left, to end by itself
_GRACE_S = 2.0  # between SIGTERM and SIGKILL
_LOOK_AGAIN_S = 0.05
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_BEFORE, _CHANGES = "OPENAI4S_ENVIRONMENT_BEFORE", "OPENAI4S_SITE_ENVIRONMENT"
# The job's and the step's own, and the shell's.
_NOT_THE_SITE_S = (
    "SLURM",
    "PMI",
    "OPENAI4S_",
    "BASH_FUNC_",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "_",
    "HOSTNAME",
    "TMPDIR",
    "SHELLOPTS",
)
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(argv: list[str]) -> int:
    """ARGV...: run it with ``--rank N`` behind it, N as the step says."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    asked: list[int] = []
    for number in _FORWARDED:
        signal.signal(number, lambda number, _: asked.append(number))
    try:
        rank = os.environ.get("SLURM_PROCID", "0")
        worker = subprocess.Popen([*argv, "--rank", rank], stdin=subprocess.DEVNULL, env=_environment())
    except OSError as error:
        sys.stderr.write(f"the worker cannot be started: {argv[0]}: {error.strerror}\n")
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
    code = _wait(worker, asked)
    _end_the_rest(asked)
    return code if code >= 0 else 128 - code


def _environment() -> dict[str, str]:
    """What the profile's modules and prologue changed is told to the worker, so that its kernel gets it too."""
    ours = dict(os.environ)
    path = ours.pop(_BEFORE, "")
    if not path:
        return ours
    with open(path, "rb") as file:
        entries = [os.fsdecode(entry).partition("=") for entry in file.read().split(b"\0") if entry]
    before = {name: value for name, _, value in entries}
    changes = [
        (name, before.get(name), value)
        for name, value in sorted(ours.items())
        if value != before.get(name) and not name.startswith(_NOT_THE_SITE_S)
    ]
    return {**ours, _CHANGES: json.dumps(changes)}


def _wait(worker: subprocess.Popen[bytes], asked: list[int]) -> int:
    """The worker's exit code, as Popen has it. Orphans are reaped meanwhile."""
    while True:
        while asked:  # one that comes in between is met as well
            worker.send_signal(asked.pop(0))
        code = worker.poll()
        if code is not None:
            return code
        _reap(worker.pid)
        time.sleep(_LOOK_AGAIN_S)


def _end_the_rest(asked: list[int]) -> None:
    polite_until = time.monotonic() + _POLITE_S
    kill_from = polite_until + _GRACE_S
    told = False
    while _reap(0):
        now = time.monotonic()
        if asked:  # whoever ends the job has no patience for this
            polite_until, kill_from = now, min(kill_from, now + _GRACE_S)
            asked.clear()
        if now >= kill_from:
            _signal_all(signal.SIGKILL)
        elif now >= polite_until and not told:
            told = True
            _signal_all(signal.SIGTERM)
        time.sleep(_LOOK_AGAIN_S)


def _reap(but: int) -> bool:
    """Collect children that have ended, but not `but`, which Popen waits for. Whether any child is left."""
    for pid in _children():
        if pid != but:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue
    return bool(_children())


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return _children_by_search()


def _children_by_search() -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    if int(file.read().rpartition(")")[2].split()[1]) == os.getpid():
                        found.append(int(name))
            except (OSError, ValueError, IndexError):
                continue
    return found


def _signal_all(number: int) -> None:
    """Children only: what they leave becomes ours, and is met the next time."""
    for pid in _children():
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
