"""The REST interface: its description against its handlers at length, who may ask for what, and wrong parameters."""

from __future__ import annotations

import sys

from .parts.report import run
from .parts.suite import run_tests

FILES = (
    "tests/unit/jupyter/test_rest_api.py",
    "tests/integration/server/test_rest_fuzz.py",
    "tests/integration/server/test_who_may.py",
    "tests/integration/server/test_looking.py",
    "tests/integration/server/test_acting.py",
    "tests/integration/server/test_starts.py",
    "tests/integration/server/test_logs.py",
    "tests/integration/server/test_commands_from_elsewhere.py",
)

if __name__ == "__main__":
    sys.exit(run("api", lambda report: run_tests(report, *FILES)))
