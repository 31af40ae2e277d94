"""What still lives of an allocation, and the end of it where its shim no longer can.

The shim is recognised by pid, start time and boot together. Once it is gone, what is left is found by the marker in
the environment that every descendant inherits, and by the session that the shim led. Only processes of this user are
looked at. It decides nothing about an allocation's outcome.
"""

from __future__ import annotations

import enum
import os
import platform
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from . import shim
from .receipts import Started
from .shim import Process

_KILL_AGAIN_S = 0.05


class Life(enum.Enum):
    """Where an allocation stands, as far as processes can tell."""

    LED = "its shim lives"
    LEADERLESS = "its shim is gone, descendants live"
    NOTHING = "no process of it is left"
    EARLIER_BOOT = "this machine was restarted since"
    ANOTHER_HOST = "it was started on another host"


@dataclass(frozen=True)
class Standing:
    life: Life
    leader: Process | None = None
    survivors: tuple[Process, ...] = ()


@cache
def this_boot() -> str:
    return shim.boot_id()


def standings(receipts: Sequence[Started]) -> dict[Started, Standing]:
    """One answer per allocation. The process table is walked only if some shim is gone, once or twice for all."""
    found = {started: _standing_of_leader(started) for started in receipts}
    orphaned = [started for started, standing in found.items() if standing is None]
    left = _survivors(orphaned)
    # A walk is no snapshot: a process may have forked behind it and ended before it. Nothing counts when seen twice.
    left.update(_survivors([started for started in orphaned if not left[started]]))
    return {started: standing or _standing_without_leader(left[started]) for started, standing in found.items()}


def end_survivors(started: Started, patience_s: float) -> bool:
    """SIGKILL whatever is left, until nothing is left. False when something still lives after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while True:
        left = _survivors([started])[started]
        if not left:
            return True
        for process in left:
            shim.send_signal(process, signal.SIGKILL)
        if time.monotonic() >= deadline:
            return False
        time.sleep(_KILL_AGAIN_S)


def _standing_of_leader(started: Started) -> Standing | None:
    if started.boot_id != this_boot():
        return Standing(Life.EARLIER_BOOT if started.host == platform.node() else Life.ANOTHER_HOST)
    process = shim.read_process(started.pid)
    if process is not None and process.start_time == started.start_time and process.is_alive:
        return Standing(Life.LED, leader=process)
    return None


def _standing_without_leader(left: Sequence[Process]) -> Standing:
    return Standing(Life.LEADERLESS if left else Life.NOTHING, survivors=tuple(left))


def _survivors(receipts: Iterable[Started]) -> dict[Started, list[Process]]:
    found: dict[Started, list[Process]] = {started: [] for started in receipts}
    if not found:
        return found
    table = {process.pid: process for process in shim.all_processes() if process.is_alive}
    for process in table.values():
        environment = _environment(process)
        for started, left in found.items():
            belongs = _marker(started) in environment or _in_session(process, started, table)
            if belongs and _is_this_users(process):
                left.append(process)
    return found


def _in_session(process: Process, started: Started, table: dict[int, Process]) -> bool:
    """Whether it belongs to the session the dead shim led, and not to a later one that got the same number."""
    return (
        process.session == started.pid
        and process.start_time >= started.start_time
        and (started.pid not in table or table[started.pid].start_time == started.start_time)
    )


def _is_this_users(process: Process) -> bool:
    """By its real uid: the owner of its folder in /proc is root as soon as it forbids to be read, as a worker does."""
    try:
        with open(f"/proc/{process.pid}/status", "rb") as file:
            uids = next(line for line in file if line.startswith(b"Uid:"))
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(uids.split()[1]) == os.getuid()


def _marker(started: Started) -> bytes:
    return f"{shim.MARKER}={started.allocation_id}".encode()


def _environment(process: Process) -> list[bytes]:
    try:
        with open(f"/proc/{process.pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []  # it ended meanwhile, or hides its environment: its session is all there is to know it by
