"""Tells whether the machine ended a process because the allocation's memory was used up.

The control group counts such ends; a process that was ended so cannot say it itself. Where there is no such counter,
nothing is claimed. Reads only the worker's own group, in which its kernels live too.
"""

from __future__ import annotations

import signal
from typing import Any

_SENTENCE = "It used more memory than this allocation has, and was ended for it. Choose a profile with more memory."


class MemoryKills:
    def __init__(self, proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> None:
        self._proc = proc
        self._groups = groups
        self._seen = self._count()

    def explained(self, event: dict[str, Any]) -> dict[str, Any]:
        """The end of a process, with the cause behind its last lines if this was it."""
        count = self._count()
        new, self._seen = count > self._seen, max(count, self._seen)
        if not new or event.get("signal") != signal.SIGKILL:
            return event
        tail = str(event.get("tail", "")).rstrip()
        return {**event, "tail": f"{tail}\n{_SENTENCE}".lstrip()}

    def _count(self) -> int:
        for path in self._files():
            try:
                with open(path, encoding="utf-8") as file:
                    words = dict(line.split(None, 1) for line in file if " " in line)
                return int(words["oom_kill"])
            except (OSError, KeyError, ValueError):
                continue
        return 0

    def _files(self) -> list[str]:
        """Where the counter may be: the second version's files first."""
        try:
            with open(f"{self._proc}/self/cgroup", encoding="utf-8") as file:
                groups = [line.rstrip("\n").split(":", 2) for line in file]
        except OSError:
            return []
        second = [f"{self._groups}{path.rstrip('/')}/memory.events" for number, _, path in groups if number == "0"]
        first = [f"{self._groups}/memory{path}/memory.oom_control" for _, kinds, path in groups if "memory" in kinds]
        return second + first
