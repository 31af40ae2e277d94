"""JupyterLab in a real browser: starts, waits, ends, leases, a reverse proxy, accessibility. Writes the screenshots."""

from __future__ import annotations

import sys

from .parts.place import REPOSITORY
from .parts.report import run
from .parts.suite import run_tests

if __name__ == "__main__":
    folders = ["tests/e2e", *map(str, sorted(REPOSITORY.glob("backends/*/tests/browser")))]  # each backend has its own
    sys.exit(run("ui", lambda report: run_tests(report, *folders)))
