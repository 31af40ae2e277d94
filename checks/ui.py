"""JupyterLab in a real browser: starts, waits, ends, leases, a reverse proxy, accessibility. Writes the screenshots."""

from __future__ import annotations

import sys

from .parts.report import run
from .parts.suite import run_tests

if __name__ == "__main__":
    sys.exit(run("ui", lambda report: run_tests(report, "tests/e2e")))
