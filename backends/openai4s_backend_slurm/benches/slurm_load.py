"""What sessions cost a controller: commands per session-hour, for 1, 50 and 500 sessions that run, or that wait, in
their first hour (which costs the most).

The real control loop and the real backend drive the sessions through simulated time; only the commands themselves are
answered here, and counted. Beside it stands what a loop of its own for each job costs that polls every five seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from openai4s_backend_slurm.backend import create_backend
from openai4s_backend_slurm.broker import Answer, Broker, Refused
from openai4s_provisioner.orchestration.config import Policy
from openai4s_provisioner.orchestration.models import ResourceProfile
from openai4s_provisioner.orchestration.ports import IsolationVerdict
from openai4s_provisioner.orchestration.session import OpenedSession
from openai4s_provisioner.testing.control_lab import ControlLab
from openai4s_provisioner.testing.faulty_backends import ManualClock

PEER_EVERY_S = 5.0
RUNNING, WAITING = "RUNNING", "PENDING"


class CountedSite:
    """A controller of which only the words exist. `state` is that of every job it was given."""

    def __init__(self) -> None:
        self.state = WAITING
        self.names: list[str] = []
        self.asked: Counter[str] = Counter()

    def run(self, argv: Sequence[str], keep_fds: Sequence[int] = ()) -> Answer:
        self.asked[argv[0]] += 1
        options = dict(word.partition("=")[::2] for word in argv)
        if argv[0] == "sbatch":
            self.names.append(options["--job-name"])
            return Answer(f"{len(self.names)}\n", "")
        if argv[0] == "squeue":
            return Answer("".join(self._row(number) for number in self._wanted(options)), "")
        if argv[0] == "scontrol":
            return Answer("PrivateData = none\n", "")
        raise Refused(f"{argv[0]}: not here")

    def _wanted(self, options: dict[str, str]) -> list[int]:
        name = options.get("--name")
        return [number for number, known in enumerate(self.names, 1) if name in (None, known)]

    def _row(self, number: int) -> str:
        where, why = ("c1", "None") if self.state == RUNNING else ("", "Resources")
        return f"{number}|{self.state}|{self.names[number - 1]}|1|N/A|N/A|{where}|cpu|1|{why}\n"


async def _measure(folder: Path, sessions: int, state: str, simulated_s: float) -> Counter[str]:
    """Commands during `simulated_s`, once every session has come to its state."""
    site, clock = CountedSite(), ManualClock()
    backend = create_backend(
        state_dir=folder / "state", exchange_dir=folder / "exchange", options={"min_interval_s": 0}
    )
    backend.isolates_session_credentials = _verified  # type: ignore[method-assign]
    backend._judge._position.__self__._clock = clock  # type: ignore[attr-defined]
    lab = ControlLab(folder, backend, clock=clock, policy=Policy(), max_sessions=sessions)
    before, Broker.run = Broker.run, lambda self, argv, keep_fds=(): site.run(argv, keep_fds)  # type: ignore[method-assign]
    try:
        opened = [await lab.open(f"kernel-{number}") for number in range(sessions)]
        await lab.turns()
        site.state = state
        await lab.turns(2)
        if state == RUNNING:
            await _make_active(lab, opened)
        site.asked.clear()
        ends = clock.now + simulated_s
        while clock.now < ends:
            await lab.reconciler.turn(patient=True)
            clock.forward(lab.reconciler.period_s)
        return site.asked
    finally:
        Broker.run = before  # type: ignore[method-assign]
        await lab.close()
        await backend.close()


async def _verified(profile: ResourceProfile, private_network: bool = False) -> IsolationVerdict:
    """Proven once a week, by one job: no load."""
    return IsolationVerdict(True)


async def _make_active(lab: ControlLab, opened: Sequence[OpenedSession]) -> None:
    for each in opened:
        await lab.dial(each)
        await lab.answer_workspace(each)
        await lab.start_kernel(each)
    await lab.turns(2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, nargs="*", default=[1, 50, 500])
    parser.add_argument("--minutes", type=float, default=60.0, help="of simulated time")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # time that is simulated looks like a process that was away
    hours = arguments.minutes / 60
    print(f"{'sessions':>8} {'they':>8} {'commands/hour':>14} {'per session-hour':>17} {'own loop each':>14}  of which")
    for sessions in arguments.sessions:
        for state in (RUNNING, WAITING):
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="o4s-load-") as folder:
                asked = asyncio.run(_measure(Path(folder), sessions, state, arguments.minutes * 60))
            total = sum(asked.values()) / hours
            kinds = ", ".join(f"{name} {count / hours:.0f}/h" for name, count in asked.most_common())
            print(
                f"{sessions:>8} {'run' if state == RUNNING else 'wait':>8} {total:>14.0f} {total / sessions:>17.2f} "
                f"{3600 / PEER_EVERY_S:>14.0f}  {kinds} ({time.monotonic() - began:.0f} s)",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
