"""Kills a control plane at every durable step, and from outside at random times; then looks at what the next one finds.

Processes are forked, so that a death costs milliseconds. What must hold afterwards: at most one active allocation for
each workload at every moment, none at the end, what a caller was told is kept, and terminal rows never change.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai4s_provisioner.orchestration.models import Phase
from openai4s_provisioner.testing.crash_points import CrashPoints, Point, recorded

from . import crash_scenarios
from .crash_scenarios import FILES, SCENARIOS, START, Scenario, World

_TERMINAL = tuple(phase.value for phase in Phase if phase.is_terminal)
_LONGEST_CYCLE_S = 1.2


@dataclass
class Findings:
    """What was tried, and what did not hold."""

    tried: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def violated(self, where: str, what: str) -> None:
        self.violations.append(f"{where}: {what}")


def crash_everywhere(scenario: str, backend: str, findings: Findings, every: int = 1) -> None:
    """Find the scenario's points, then die at each `every`-th of them, before and after."""
    points = _find_points(scenario, backend, findings)
    if not points:
        findings.violated(scenario, "no point was found")
    for point in points[::every]:
        where = f"{scenario} on {backend}, killed {point}"
        with _folder() as folder:
            status = _run(folder, lambda folder=folder, point=point: _live(folder, scenario, backend, point))  # type: ignore[misc]
            findings.tried[f"{scenario} on {backend}"] += 1
            if status != -signal.SIGKILL:
                findings.violated(where, f"the point was not hit (status {status}){_told(folder)}")
            _look(folder, backend, where, findings)


def kill_at_random(times: int, backend: str, findings: Findings, seed: int) -> None:
    """One folder, one life after the other, each ended by SIGKILL from outside after a random time."""
    chance = random.Random(seed)
    with _folder() as folder:
        for number in range(times):
            where = f"kill {number} on {backend} (seed {seed})"
            pid = _fork(folder, lambda: _live_on(folder, backend))
            time.sleep(chance.uniform(0.0, _LONGEST_CYCLE_S))  # the moment of the crash, not a synchronisation
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            findings.tried[f"random kills on {backend}"] += 1
            if not os.WIFSIGNALED(status):
                findings.violated(where, f"it ended before it was killed{_told(folder)}")
            _look(folder, backend, where, findings)


def _find_points(scenario: str, backend: str, findings: Findings) -> Sequence[Point]:
    with _folder() as folder:
        record = folder / "points"
        status = _run(folder, lambda: _live(folder, scenario, backend, None, record))
        if status != 0:
            findings.violated(scenario, f"it does not even work without a crash (status {status}){_told(folder)}")
        _look(folder, backend, f"{scenario} on {backend}, not killed", findings)
        return recorded(record) if record.exists() else []


# -- lives, each in a process of its own -----------------------------------------------------------------------------


def _live(folder: Path, scenario: str, backend: str, target: Point | None, record: Path | None = None) -> None:
    points = CrashPoints(target, record)
    points.install()
    world = World(folder, backend, points)
    asyncio.run(_life(world, SCENARIOS[scenario], START))


async def _life(world: World, scenario: Scenario, now: float) -> None:
    lab = world.lab(now)
    try:
        await scenario(lab, world)
    finally:
        world.points.armed = False
        await lab.close()


def _live_on(folder: Path, backend: str) -> None:
    """Sessions one after the other, stopped, lost and recovered, until somebody kills this process."""

    async def cycles(lab: Any, world: World) -> None:
        lab.clients_connected = True
        while True:
            opened = await crash_scenarios.active(lab, world)
            world.lose()
            opened = await crash_scenarios.recovered(lab, world, opened)
            await crash_scenarios.stop(lab, world, opened)

    asyncio.run(_life(World(folder, backend, CrashPoints()), cycles, START + _age(folder)))


def _survive(folder: Path, backend: str) -> None:
    """The next process: adopts, and drives everything to its end; never two allocations for one workload."""

    async def life() -> None:
        world = World(folder, backend, CrashPoints())
        lab = world.lab(START + _age(folder))
        turn = lab.reconciler.turn

        async def watched(only: Sequence[str] | None = None, patient: bool = False) -> None:
            await turn(only, patient)
            _at_most_one_each(world)

        lab.reconciler.turn = watched  # type: ignore[method-assign]
        try:
            await crash_scenarios.finish(lab, world)
        finally:
            await lab.close()

    asyncio.run(life())


def _at_most_one_each(world: World) -> None:
    running = world.running()
    if world.kind == FILES:
        doubled = [workload for workload, count in Counter(running).items() if count > 1]
        assert not doubled, f"two allocations run for {doubled}"
    else:
        assert len(running) <= 1, f"two programs run: {running}"


# -- what is looked at -----------------------------------------------------------------------------------------------


def _look(folder: Path, backend: str, where: str, findings: Findings) -> None:
    world = World(folder, backend, CrashPoints())
    try:
        _at_most_one_each(world)
    except AssertionError as error:
        findings.violated(where, f"right after the death: {error}")
    before = _terminal_rows(folder)
    status = _run(folder, lambda: _survive(folder, backend))
    if status != 0:
        findings.violated(where, f"the next process failed (status {status}){_told(folder)}")
    after = _terminal_rows(folder)
    if changed := [row for row in before if row not in after]:
        findings.violated(where, f"terminal rows changed: {changed}")
    if leaked := world.running():
        findings.violated(where, f"still running: {leaked}")
    if left := _files_left(folder):
        findings.violated(where, f"files left: {left}")
    for broken in _broken_promises(folder):
        findings.violated(where, broken)


def _terminal_rows(folder: Path) -> list[tuple[Any, ...]]:
    if not (folder / "state" / "state.db").exists():
        return []
    marks = ",".join("?" * len(_TERMINAL))
    with contextlib.closing(sqlite3.connect(folder / "state" / "state.db")) as connection:
        found = []
        for table in ("workload", "allocation"):
            found += connection.execute(f"SELECT * FROM {table} WHERE phase IN ({marks})", _TERMINAL).fetchall()
        return found


def _files_left(folder: Path) -> list[str]:
    attempts = folder / "exchange" / "attempts"
    left = list(attempts.iterdir()) if attempts.exists() else []
    return sorted(str(path.relative_to(folder)) for path in [*left, *(folder / "work").iterdir()])


def _broken_promises(folder: Path) -> Iterator[str]:
    """What a caller was told before the death: an opened session exists, a stop keeps its first reason."""
    promises = folder / "promises"
    if not promises.exists():
        return
    with contextlib.closing(sqlite3.connect(folder / "state" / "state.db")) as connection:
        for line in promises.read_text().splitlines():
            kind, workload_id, *rest = line.split()
            found = connection.execute(
                "SELECT stop_reason FROM workload WHERE workload_id = ?", (workload_id,)
            ).fetchone()
            if found is None:
                yield f"{kind} {workload_id} was promised, and is forgotten"
            elif kind == "stopped" and found[0] != rest[0]:
                yield f"a stop for {rest[0]} was promised, and became {found[0]}"


def _age(folder: Path) -> float:
    """Lives follow each other in one folder: each clock begins behind the one before.

    A life is an empty file, which is there or not: a number in a file could be lost by a kill while it is written.
    """
    lives = len(list(folder.glob("life-*"))) + 1
    (folder / f"life-{lives}").touch()
    return lives * 100_000.0


# -- processes -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="o4s-crash-"))
    (folder / "work").mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(folder: Path, body: Callable[[], None]) -> int:
    """Run a body in a forked process; its exit status, or minus the signal that ended it."""
    _, status = os.waitpid(_fork(folder, body), 0)
    return os.waitstatus_to_exitcode(status)


def _fork(folder: Path, body: Callable[[], None]) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        body()
        status = 0
    except BaseException:
        (folder / "error").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def _told(folder: Path) -> str:
    error = folder / "error"
    return f": {error.read_text().strip().splitlines()[-1]}" if error.exists() else ""
