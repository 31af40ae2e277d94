"""Who descends from whom, read from /proc, and how to signal a kernel together with what it started.

An interrupt must reach ``os.system("sleep 1000")`` as well as the kernel, because a terminal's Ctrl-C would.
It must not reach the kernel's ancestors (a wrapper shell would end and take the kernel along), nor a descendant
that chose a process group of its own. It refuses to guess: a process whose identity changed between reading
and signalling is left alone, since process ids are reused.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import NamedTuple


class Process(NamedTuple):
    """One line of /proc: `started` (clock ticks since boot) tells a reused pid from the process it once was."""

    pid: int
    parent: int
    group: int
    started: int


def read_process(pid: int, proc: str = "/proc") -> Process | None:
    """The process, or None when it is gone or already a zombie."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as stat:
            text = stat.read()
    except OSError:
        return None
    # The command name may hold spaces and parentheses, so the fields are counted from the last one.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    return Process(pid=pid, parent=int(fields[1]), group=int(fields[2]), started=int(fields[19]))


def read_all(proc: str = "/proc") -> dict[int, Process]:
    found = (read_process(int(name), proc) for name in os.listdir(proc) if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def with_descendants_in_group(pid: int, processes: dict[int, Process]) -> list[Process]:
    """The process itself first, then its descendants that share its process group, parents before children."""
    root = processes.get(pid)
    if root is None:
        return []
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found, waiting = [root], [root.pid]
    while waiting:
        for child in children.get(waiting.pop(0), []):
            waiting.append(child.pid)
            if child.group == root.group:
                found.append(child)
    return found


def signal_tree(pid: int, signum: int) -> list[int]:
    """Signal a process and its descendants of the same group; returns the pids that were signalled.

    Reading /proc takes milliseconds. A program started meanwhile is in no list yet, while its parent, waiting for it,
    ignores the interrupt; so those that have come are looked for once more, and nobody is signalled twice.
    """
    first = with_descendants_in_group(pid, read_all())
    if first and first[0].group == pid and _same_now(first[0]):  # it leads its group: the system reaches all at once
        with contextlib.suppress(OSError):
            os.killpg(pid, signum)
            return [target.pid for target in first]
    signalled = [target.pid for target in first if _signal_one(target, signum)]
    late = [target for target in with_descendants_in_group(pid, read_all()) if target.pid not in signalled]
    return signalled + [target.pid for target in late if _signal_one(target, signum)]


def _same_now(target: Process) -> bool:
    now = read_process(target.pid)
    return now is not None and now.started == target.started


def _signal_one(target: Process, signum: int) -> bool:
    try:
        pidfd = os.pidfd_open(target.pid)
    except OSError:
        return False
    try:
        now = read_process(target.pid)
        if now is None or now.started != target.started:
            return False
        signal.pidfd_send_signal(pidfd, signum)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True


def children_of(pid: int) -> list[Process]:
    return [process for process in read_all().values() if process.parent == pid]


def descendants_of(pid: int) -> list[Process]:
    processes = list(read_all().values())
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        children = [process for process in processes if process.parent == parent]
        found += children
        waiting += [child.pid for child in children]
    return found


def descends_from(pid: int, ancestor: int) -> bool:
    processes = read_all()
    while pid in processes:
        if pid == ancestor:
            return True
        pid = processes[pid].parent
    return False


def find_by_namespace_pid(inner_pid: int, ancestor: int) -> int | None:
    """The pid, in our own namespace, of the descendant of `ancestor` that calls itself `inner_pid` in its own."""
    processes = read_all()
    waiting = [ancestor]
    while waiting:
        parent = waiting.pop()
        children = [process.pid for process in processes.values() if process.parent == parent]
        for child in children:
            if _namespace_pid(child) == inner_pid:
                return child
        waiting += children
    return None


def _namespace_pid(pid: int, proc: str = "/proc") -> int | None:
    """What the process is called in its innermost pid namespace; None when that is ours, or it is gone."""
    try:
        with open(f"{proc}/{pid}/status", encoding="utf-8", errors="replace") as status:
            numbers = [line.split()[1:] for line in status if line.startswith("NSpid:")]
    except OSError:
        return None
    return int(numbers[0][-1]) if numbers and len(numbers[0]) > 1 else None


def lives(known: Process) -> bool:
    """Whether that very process has not ended."""
    return is_same(read_process(known.pid), known)


def is_same(found: Process | None, known: Process) -> bool:
    """A pid is reused; the time of its start is not."""
    return found is not None and found.started == known.started


def end_of(process: subprocess.Popen[bytes] | None) -> dict[str, int | None]:
    """How a sandbox ended that could report nothing itself: a shell's code above 128 stands for a signal."""
    code = process.returncode if process is not None else None
    if code is None:
        return {"exit_code": None, "signal": None}
    number = -code if code < 0 else code - 128
    return {"exit_code": None, "signal": number} if number > 0 else {"exit_code": code, "signal": None}
