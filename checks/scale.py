"""What one turn of the control loop costs with 10, 100 and 1,000 workloads, nine of ten of them steady.

A turn in which nothing changed asks each backend once and writes nothing; its cost grows no faster than the number of
workloads. Real store, reconciler and session service; the backend is in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from openai4s_provisioner.orchestration.config import Policy
from openai4s_provisioner.orchestration.models import Phase
from openai4s_provisioner.orchestration.ports import Observation, Observed
from openai4s_provisioner.orchestration.session import OpenedSession
from openai4s_provisioner.orchestration.store import Store
from openai4s_provisioner.testing.control_lab import ControlLab
from openai4s_provisioner.testing.faulty_backends import ManualClock, ObedientBackend

from .parts.place import private_place
from .parts.report import Report, run

SIZES = (10, 100, 1000)
_GENEROUS = 2.0  # a size ten times larger may cost so many times more than ten times as much
_TURN_S = 5.0  # the period at which everything is looked at while something is pending
_REPEATS = 5
_ISOLATED = {"type": "isolation", "ok": True, "sentence": "", "attacks": {}}


@dataclass(frozen=True)
class Cost:
    turn_s: float
    cpu_s: float
    writes: int
    questions: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="up to 100 workloads")
    sizes = SIZES[:-1] if parser.parse_args().quick else SIZES
    logging.disable(logging.WARNING)

    def body(report: Report) -> None:
        costs = {}
        for size in sizes:
            with private_place() as place:
                costs[size] = asyncio.run(_measure(report, place.work, size))
        _judge(report, costs)

    return run("scale", body)


async def _measure(report: Report, folder: Path, size: int) -> Cost:
    report.section(f"{size} workloads, {size * 9 // 10} of them steady")
    clock = ManualClock()
    backend = ObedientBackend(clock)
    policy = Policy(registration_timeout_s=1e6, call_deadline_s=60.0)
    lab = ControlLab(folder, backend, clock=clock, policy=policy, max_sessions=2 * size)
    try:
        began = time.monotonic()
        await _populate(lab, backend, size)
        report.figure("seconds to make them", f"{time.monotonic() - began:.1f}")
        return await _steady_turns(report, lab, backend)
    finally:
        await lab.close()


async def _populate(lab: ControlLab, backend: ObedientBackend, size: int) -> None:
    """Nine of ten ACTIVE with a worker that talks; the tenth waits in the queue."""
    opened = [await lab.open(f"kernel-{number}") for number in range(size)]
    await lab.turns()
    steady = opened[: size * 9 // 10]
    tokens = {each.token: each for each in backend.allocations}
    for each in opened[len(steady) :]:
        tokens[(await lab.situation(each)).allocation.token].seen = Observation(
            Observed.PENDING, waiting="in the queue"
        )
    await lab.turns()
    for each in steady:
        await _make_ready(lab, each)
    await lab.turns(2)
    for each in steady:
        assert (await lab.situation(each)).allocation.phase is Phase.ACTIVE


async def _make_ready(lab: ControlLab, opened: OpenedSession) -> None:
    assert await lab.dial(opened) is not None
    await lab.store.run(Store.workspace, opened.allocation_id, 0, True, "")
    await lab.report(opened, {**_ISOLATED, "launch_id": opened.launch_id})
    await lab.report(opened, {"type": "kernel_started", "launch_id": opened.launch_id, "pid": 4242})
    await lab.sessions.kernel_ready(opened.launch_id)


async def _steady_turns(report: Report, lab: ControlLab, backend: ObedientBackend) -> Cost:
    changes, questions = await _changes(lab), backend.observes
    turns, cpu = [], []
    for _ in range(_REPEATS):
        began, used = time.monotonic(), _cpu_s()
        await lab.turns()
        turns.append(time.monotonic() - began)
        cpu.append(_cpu_s() - used)
    cost = Cost(min(turns), min(cpu), await _changes(lab) - changes, backend.observes - questions)
    report.figure("one turn, seconds (best, worst)", f"{min(turns):.3f}, {max(turns):.3f}")
    report.figure("one turn, seconds of processor", f"{cost.cpu_s:.3f}")
    report.figure("rows written in all turns", cost.writes)
    report.figure("questions to the backend per turn", cost.questions / _REPEATS)
    return cost


async def _changes(lab: ControlLab) -> int:
    return int(await lab.store.run(lambda store: store.db._connection.total_changes))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _judge(report: Report, costs: dict[int, Cost]) -> None:
    report.section("judged")
    for size, cost in costs.items():
        report.expect(cost.writes == 0, f"{size}: a turn in which nothing changed writes nothing")
        report.expect(cost.questions == _REPEATS, f"{size}: one question to the backend per turn")
    largest = max(costs)
    seconds = costs[largest].turn_s
    report.expect(seconds < _TURN_S, f"{largest}: a turn ({seconds:.2f} s) ends before the next one begins")
    sizes = sorted(costs)
    for small, large in itertools.pairwise(sizes):
        ratio = costs[large].cpu_s / max(costs[small].cpu_s, 0.001)
        allowed = _GENEROUS * large / small
        report.expect(ratio <= allowed, f"{small} -> {large}: the cost grows {ratio:.1f} times (allowed: {allowed:g})")


if __name__ == "__main__":
    sys.exit(main())
