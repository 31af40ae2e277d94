"""A sibling session of the same person cannot reach the other; every attack bites where nothing confines it."""

from __future__ import annotations

import sys

from .parts.report import run
from .parts.suite import run_tests

FILES = ("tests/integration/test_isolation.py", "tests/integration/sandbox")

if __name__ == "__main__":
    sys.exit(run("isolation", lambda report: run_tests(report, *FILES)))
