"""What the control group of this process says of memory: how much it allows, and how often it ended a process.

Both kinds of control groups are read. What is not there is no limit and no end; nothing is guessed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator


def memory_limit(proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> int | None:
    """Bytes that the control group of this process, or one above it, allows; None where that is the whole machine."""
    limits = []
    for mounted, group, is_unified in _groups_of_memory(proc, groups):
        limits += _limits(mounted, group, "memory.max" if is_unified else "memory.limit_in_bytes")
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    least = min(limits, default=machine)
    return least if least < machine else None


def ended_for_memory(proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> int:
    """How many processes of this control group the system has ended because it had no memory left."""
    count = 0
    for mounted, group, is_unified in _groups_of_memory(proc, groups):
        name = "memory.events" if is_unified else "memory.oom_control"
        found = re.search(r"^oom_kill (\d+)$", _read(f"{mounted}{group.rstrip('/')}/{name}"), re.MULTILINE)
        count += int(found[1]) if found else 0
    return count


def _groups_of_memory(proc: str, groups: str) -> Iterator[tuple[str, str, bool]]:
    """Where they are mounted, their names, and whether they are of the newer kind."""
    for line in _read(f"{proc}/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            yield groups, group, True
        elif "memory" in controllers.split(","):
            yield f"{groups}/memory", group, False


def _limits(mounted: str, group: str, name: str) -> list[int]:
    """Of a group and all above it: the tightest one counts."""
    found = []
    while True:
        text = _read(f"{mounted}{group.rstrip('/')}/{name}").strip()
        if text.isdigit():  # else not there, or "max"
            found.append(int(text))
        if group in ("", "/"):
            return found
        group = os.path.dirname(group)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
