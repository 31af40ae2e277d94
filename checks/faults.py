"""Every fake backend by the name of its failure, recovery, pace, random histories, and that broken rules are caught."""

from __future__ import annotations

import sys

from .parts.report import run
from .parts.suite import run_tests

FILES = (
    "tests/integration/test_control_plane_faults.py",
    "tests/integration/test_recovery.py",
    "tests/integration/test_pace.py",
    "tests/properties/test_histories.py",
    "tests/crash/test_broken_rules.py",
)

if __name__ == "__main__":
    sys.exit(run("faults", lambda report: run_tests(report, *FILES)))
