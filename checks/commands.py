"""Commands, notebooks and tasks: exit codes and causes, confinement, what outlives whom, and nothing left behind."""

from __future__ import annotations

import sys

from .parts.report import run
from .parts.suite import run_tests

FILES = (
    "tests/integration/test_batch.py",
    "tests/integration/test_tasks.py",
    "tests/integration/test_tasks_from_inside.py",
)

if __name__ == "__main__":
    sys.exit(run("commands", lambda report: run_tests(report, *FILES)))
