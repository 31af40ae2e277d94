"""The control plane keeps its promises through every crash: killed at every durable step, and at random times.

Points are found by wrapping the store, the backend's port and the attempt's files, never listed. `--quick` takes a
sample of them.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from .parts.crash_harness import Findings, crash_everywhere, kill_at_random
from .parts.crash_scenarios import FILES, LOCAL, SCENARIOS
from .parts.place import private_place
from .parts.report import Report, run

_QUICK_EVERY = 13  # every so many points; odd, so that both moments are among them
_KILLS = {FILES: 100, LOCAL: 100}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a sample of the points, and few random kills")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the random times")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # what a dying process complains about is no news here

    def body(report: Report) -> None:
        with private_place():
            for backend in (FILES, LOCAL):
                _at_every_point(report, backend, _QUICK_EVERY if options.quick else 1)
                _at_random(report, backend, 5 if options.quick else _KILLS[backend], options.seed)

    return run("crash", body)


def _at_every_point(report: Report, backend: str, every: int) -> None:
    report.section(f"killed at every durable step, on the backend '{backend}'")
    for scenario in SCENARIOS:
        findings = Findings()
        crash_everywhere(scenario, backend, findings, every)
        _judge(report, f"{scenario}: {findings.tried.total()} points, nothing doubled, leaked or forgotten", findings)


def _at_random(report: Report, backend: str, times: int, seed: int) -> None:
    report.section(f"kill -9 from outside, on the backend '{backend}'")
    report.figure("seed", seed)
    findings = Findings()
    kill_at_random(times, backend, findings, seed)
    _judge(report, f"{findings.tried.total()} kills, nothing doubled, leaked or forgotten", findings)


def _judge(report: Report, what: str, findings: Findings) -> None:
    for violation in findings.violations[:10]:
        report.figure("violation", violation)
    report.expect(not findings.violations and findings.tried.total() > 0, what)


if __name__ == "__main__":
    sys.exit(main())
