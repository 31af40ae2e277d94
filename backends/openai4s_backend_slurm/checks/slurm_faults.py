"""Every fault of a site at full length, with the product's own clocks: see tests/test_faults.py and its neighbours."""

from __future__ import annotations

import sys

from checks.parts.report import run
from checks.parts.suite import run_tests

_TESTS = "backends/openai4s_backend_slurm/tests"

if __name__ == "__main__":
    sys.exit(run("slurm-faults", lambda report: run_tests(report, f"{_TESTS}/test_faults.py", f"{_TESTS}/test_lab.py")))
