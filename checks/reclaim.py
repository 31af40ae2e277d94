"""Leases: the races by fake clock, random histories with broken copies of the rules, and real sessions that run out."""

from __future__ import annotations

import sys

from .parts.report import run
from .parts.suite import run_tests

FILES = (
    "tests/unit/wire/test_subscriber.py",
    "tests/unit/test_leases.py",
    "tests/properties/test_lease_histories.py",
    "tests/integration/test_reclaimer.py",
    "tests/integration/worker/test_activity.py",
    "tests/integration/test_leases.py",
)

if __name__ == "__main__":
    sys.exit(run("reclaim", lambda report: run_tests(report, *FILES)))
