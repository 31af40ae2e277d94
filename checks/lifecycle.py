"""Interrupt, restart, shutdown and sudden death: the stated outcome each, and nothing left behind."""

from __future__ import annotations

import sys

from .parts.report import run
from .parts.suite import run_tests

FILES = ("tests/integration/test_lifecycle.py", "tests/integration/test_server_death.py")

if __name__ == "__main__":
    sys.exit(run("lifecycle", lambda report: run_tests(report, *FILES)))
