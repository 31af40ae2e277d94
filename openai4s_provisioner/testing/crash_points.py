"""Where a process may die: found by wrapping the store's connection, the backend's port and the attempt's files.

Nothing here lists points. A first run records every durable step that is reached, before and after it; later runs name
one of them, and the process kills itself there with SIGKILL. Only for processes that exist to be killed.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from openai4s_provisioner.orchestration.attempt import AttemptPreparer
from openai4s_provisioner.orchestration.models import ExternalHandle, ResourceProfile
from openai4s_provisioner.orchestration.ports import (
    AllocationBackend,
    AllocationRequest,
    Diagnostics,
    IsolationVerdict,
    Observation,
    SubmitResult,
    TerminalAllocationAcknowledger,
)
from openai4s_provisioner.orchestration.store import sqlite

_NAMES = {text: name for name, text in sqlite.QUERIES.items()}


class Point(NamedTuple):
    """The nth time that a step is begun ("before") or done ("after")."""

    step: str
    moment: str
    nth: int

    def __str__(self) -> str:
        return f"{self.moment} {self.step} #{self.nth}"


@dataclass
class CrashPoints:
    """Records what is reached while `armed`, or dies at `target`."""

    target: Point | None = None
    record: Path | None = None
    armed: bool = False

    def __post_init__(self) -> None:
        self._reached: Counter[tuple[str, str]] = Counter()
        self._guard = threading.Lock()

    def reached(self, step: str, moment: str) -> None:
        if not self.armed:
            return
        with self._guard:
            self._reached[step, moment] += 1
            point = Point(step, moment, self._reached[step, moment])
            if self.record is not None:
                with self.record.open("a") as file:
                    file.write(f"{step}\t{moment}\t{point.nth}\n")
        if point == self.target:
            os.kill(os.getpid(), signal.SIGKILL)

    def wrap(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.reached(step, "before")
            result = function(*args, **kwargs)
            self.reached(step, "after")
            return result

        return wrapped

    def install(self) -> None:
        """From now on every state file that this process opens, and every attempt it writes, has points."""
        connect = sqlite._connect
        sqlite._connect = lambda path: _Connection(connect(path), self)  # type: ignore[assignment, return-value]
        for step in ("_write", "_clear"):
            setattr(AttemptPreparer, step, self.wrap(f"files {step[1:]}", getattr(AttemptPreparer, step)))


def recorded(record: Path) -> list[Point]:
    """What a recording run reached, in order."""
    lines = [line.split("\t") for line in record.read_text().splitlines()]
    return [Point(step, moment, int(nth)) for step, moment, nth in lines]


class _Connection:
    """A connection whose writes and commits are points; reads are none."""

    def __init__(self, real: sqlite3.Connection, points: CrashPoints) -> None:
        self._real = real
        self._points = points
        self._first_write = ""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        step = self._step(sql)
        if not step:
            return self._real.execute(sql, *values)
        self._points.reached(step, "before")
        cursor = self._real.execute(sql, *values)
        self._points.reached(step, "after")
        return cursor

    def _step(self, sql: str) -> str:
        if sql.startswith("BEGIN"):
            self._first_write = ""
        if sql == "COMMIT":
            return f"commit {self._first_write}" if self._first_write else ""
        name = _NAMES.get(sql)
        if name is None or sql.lstrip().upper().startswith("SELECT"):
            return ""
        self._first_write = self._first_write or name
        return name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class BackendWithCrashPoints:
    """Any backend, with a point before and after every call that changes something. Counts as isolated: that the
    proof holds is shown elsewhere, and it would be made anew in every process that dies here."""

    def __init__(self, real: AllocationBackend, points: CrashPoints) -> None:
        self.real = real
        self.name = real.name
        self._points = points

    def check_profile(self, profile: ResourceProfile) -> None:
        self.real.check_profile(profile)

    async def isolates_session_credentials(
        self, profile: ResourceProfile, private_network: bool = False
    ) -> IsolationVerdict:
        return IsolationVerdict(True)

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        self._points.reached("backend submit", "before")
        answer = await self.real.submit(request)
        self._points.reached("backend submit", "after")
        return answer

    async def observe(self, handles: Sequence[ExternalHandle]) -> Mapping[ExternalHandle, Observation]:
        return await self.real.observe(handles)

    async def cancel(self, handle: ExternalHandle) -> None:
        self._points.reached("backend cancel", "before")
        await self.real.cancel(handle)
        self._points.reached("backend cancel", "after")

    async def find_by_token(self, token: str) -> ExternalHandle | None:
        return await self.real.find_by_token(token)

    async def acknowledge_terminal(self, handle: ExternalHandle) -> None:
        if isinstance(self.real, TerminalAllocationAcknowledger):
            self._points.reached("backend acknowledge", "before")
            await self.real.acknowledge_terminal(handle)
            self._points.reached("backend acknowledge", "after")

    async def diagnostics(self, handle: ExternalHandle) -> Diagnostics:
        return await self.real.diagnostics(handle)

    async def close(self) -> None:
        await self.real.close()
