"""Every fault of a site at full length, with the product's own clocks, on real daemons, without accounting and with it.

Daemons stopped, hung and killed; jobs cancelled, preempted, requeued, out of time and memory; what is missing on nodes;
nodes behind a firewall, with their link cut; what a site's file, wrapper and clock may have wrong.
"""

from __future__ import annotations

import sys

from checks.parts.report import run
from checks.parts.suite import run_tests

_FOLDER = "backends/openai4s_backend_slurm/tests"
FAULTS = (
    "test_cancelling",
    "test_endings",
    "test_recoveries",
    "test_starts_that_fail",
    "test_silent_daemons",
    "test_purged",
)
OTHERS = (
    "test_memory",
    "test_firewall",
    "test_lab",
    "test_waiting",
    "test_oddities",
    "test_wrappers",
    "test_refusals",
    "test_bad_input",
    "test_clock",
)
FILES = tuple(f"{_FOLDER}/{name}.py" for name in (*FAULTS, *OTHERS))

if __name__ == "__main__":
    sys.exit(run("slurm-faults", lambda report: run_tests(report, *FILES)))
