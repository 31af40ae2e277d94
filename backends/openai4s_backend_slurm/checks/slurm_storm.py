"""200 submissions while the controller hangs at random moments, without accounting and with it: 200 jobs, no more."""

from __future__ import annotations

import sys

from checks.parts.report import run
from checks.parts.suite import run_tests

if __name__ == "__main__":
    sys.exit(
        run("slurm-storm", lambda report: run_tests(report, "backends/openai4s_backend_slurm/tests/test_storm.py"))
    )
