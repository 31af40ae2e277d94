"""What a session uses on this machine: processor time and memory of everything below the worker, and accelerators.

Read from /proc, and the limit from the control group, where there is one; accelerators by their maker's own tool,
where it is installed. It looks at most every ten seconds, tells only what has changed, and never waits: what cannot
be read is left out.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

from ..transport.loop import Loop, Timer
from .memory import memory_limit

_log = logging.getLogger(__name__)
_FIRST_S = 3.0
_EVERY_S = 10.0
_AT_LEAST_EVERY_S = 60.0  # whether or not anything has changed: for a reader that has just come
_CPU_STEP, _MEMORY_STEP_MB = 2.0, 8
_TOOL_S = 5.0
_MB = 1024 * 1024
_QUERY = ("--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits")

Reading = dict[str, Any]


@dataclass(frozen=True)
class _Seen:
    """One process at one moment."""

    parent: int
    started: int
    ticks: int  # of processor time


class ProcessUse:
    """Processor time and memory of the descendants of one process."""

    def __init__(self, root: int, proc: str = "/proc") -> None:
        self._root = root
        self._proc = proc
        self._before: dict[tuple[int, int], int] = {}
        self._looked_at: float | None = None

    def look(self, now: float) -> tuple[float, int]:
        """Percent of one processor since the last look (0 at the first), and bytes of memory."""
        tree = self._tree()
        ticks = {(pid, seen.started): seen.ticks for pid, seen in tree.items()}
        used = sum(count - self._before.get(process, 0) for process, count in ticks.items())
        elapsed = 0.0 if self._looked_at is None else now - self._looked_at
        self._before, self._looked_at = ticks, now
        percent = 100.0 * used / os.sysconf("SC_CLK_TCK") / elapsed if elapsed > 0 else 0.0
        return max(0.0, percent), sum(self._memory(pid) for pid in tree)

    def _tree(self) -> dict[int, _Seen]:
        everything: dict[int, _Seen] = {}
        children: dict[int, list[int]] = {}
        for name in os.listdir(self._proc):
            seen = self._read(name) if name.isdigit() else None
            if seen is not None:
                everything[int(name)] = seen
                children.setdefault(seen.parent, []).append(int(name))
        found: dict[int, _Seen] = {}
        waiting = [self._root]
        while waiting:
            for child in children.get(waiting.pop(), []):
                found[child] = everything[child]
                waiting.append(child)
        return found

    def _read(self, name: str) -> _Seen | None:
        try:
            with open(f"{self._proc}/{name}/stat", "rb") as file:
                text = file.read()
        except OSError:
            return None
        fields = text[text.rfind(b")") + 2 :].split()  # the command name may hold spaces and parentheses
        if len(fields) < 20:
            return None
        return _Seen(parent=int(fields[1]), started=int(fields[19]), ticks=int(fields[11]) + int(fields[12]))

    def _memory(self, pid: int) -> int:
        """What only leaving this process would free, as far as the system says: no file that is merely mapped."""
        try:
            with open(f"{self._proc}/{pid}/status", encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            return 0
        return sum(1024 * int(size) for size in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", text, re.MULTILINE))


class Accelerators:
    """Asks the maker's own tool, without waiting for it. Where there is none, it is not asked again."""

    def __init__(self, loop: Loop, environ: Mapping[str, str], gpus: int, program: str = "nvidia-smi") -> None:
        self._loop = loop
        value = environ.get("CUDA_VISIBLE_DEVICES", "")
        self._is_there = gpus > 0 or bool(re.match(r"\d|GPU-", value))
        chosen = ("-i", value) if re.match(r"\d|GPU-", value) else ()
        self._argv = (program, *chosen, *_QUERY)
        self._process: subprocess.Popen[bytes] | None = None
        self._told = b""
        self._timer: Timer | None = None
        self.readings: list[dict[str, int]] = []

    def ask(self) -> None:
        if not self._is_there or self._process is not None:
            return
        try:
            self._process = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError:
            self._is_there = False
            return
        assert self._process.stdout is not None
        self._told = b""
        self._loop.watch(self._process.stdout.fileno(), readable=self._read)
        self._timer = self._loop.call_later(_TOOL_S, self._end)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdout is not None
            self._loop.unwatch(process.stdout.fileno())
            process.stdout.close()
            process.kill()
            process.wait()
        if self._timer is not None:
            self._timer.cancel()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        data = os.read(self._process.stdout.fileno(), 65536)
        self._told += data
        if not data or len(self._told) > 65536:
            self.readings = list(parsed(self._told.decode("utf-8", errors="replace")))
            self._end()

    def _end(self) -> None:
        if self._process is not None and self._process.poll() is None and not self._told:
            _log.info("the accelerators' own tool does not answer")
        self.close()


def parsed(text: str) -> list[dict[str, int]]:
    """The tool's lines, "percent, megabytes" each; a value that it does not know counts as 0."""
    rows = [re.fullmatch(r"\s*([^,]+?)\s*,\s*([^,]+?)\s*", line) for line in text.splitlines()]
    found = [row.groups() for row in rows if row is not None]
    return [
        {"index": index, "percent": _whole(percent), "memory_mb": _whole(memory)}
        for index, (percent, memory) in enumerate(found)
    ]


def _whole(text: str) -> int:
    return int(text) if text.isdigit() else 0


class UsageWatch:
    """Looks now and then, and tells what has changed. `may_tell`: whether somebody is there to hear it."""

    def __init__(
        self,
        loop: Loop,
        tell: Callable[[Reading], None],
        may_tell: Callable[[], bool],
        gpus: int = 0,
        root: int | None = None,
    ) -> None:
        self._loop = loop
        self._tell = tell
        self._may_tell = may_tell
        self._use = ProcessUse(os.getpid() if root is None else root)
        self._accelerators = Accelerators(loop, os.environ, gpus)
        self._told: Reading = {}
        self._told_at = 0.0
        self._timer = loop.call_later(_FIRST_S, self._look)

    def close(self) -> None:
        self._timer.cancel()
        self._accelerators.close()

    def _look(self) -> None:
        self._timer = self._loop.call_later(_EVERY_S, self._look)
        now = self._loop.now()
        percent, memory = self._use.look(now)
        limit = memory_limit()
        reading: Reading = {
            "cpu_percent": round(percent, 1),
            "memory_mb": round(memory / _MB),
            "memory_limit_mb": None if limit is None else limit // _MB,
            "gpus": self._accelerators.readings,
        }
        self._accelerators.ask()
        is_due = now - self._told_at >= _AT_LEAST_EVERY_S or _differs(self._told, reading)
        if is_due and self._may_tell():
            self._told, self._told_at = reading, now
            self._tell({"type": "usage", **reading})


def _differs(before: Reading, now: Reading) -> bool:
    """By more than a reader would see."""
    if not before or (before["gpus"], before["memory_limit_mb"]) != (now["gpus"], now["memory_limit_mb"]):
        return True
    cpu = float(abs(before["cpu_percent"] - now["cpu_percent"]))
    memory = int(abs(before["memory_mb"] - now["memory_mb"]))
    return cpu >= _CPU_STEP or memory >= _MEMORY_STEP_MB
