"""Every fault of a site at full length, with the product's own clocks, on real daemons, without accounting and with it.

Daemons stopped, hung and killed; jobs cancelled, preempted, requeued, out of time and memory; what is missing on nodes;
nodes behind a firewall, with their link cut.
"""

from __future__ import annotations

import sys

from checks.parts.report import run
from checks.parts.suite import run_tests

TESTS = [f"backends/openai4s_backend_slurm/tests/test_{name}.py" for name in ("faults", "memory", "firewall", "lab")]

if __name__ == "__main__":
    sys.exit(run("slurm-faults", lambda report: run_tests(report, *TESTS)))
