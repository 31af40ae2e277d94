"""Cut cables, vanished peers, firewalls and slow readers change nothing that a person sees, but for a notice."""

from __future__ import annotations

import sys

from .parts.report import run
from .parts.suite import run_tests

FILES = ("tests/integration/test_resume.py", "tests/integration/test_resume_networks.py")

if __name__ == "__main__":
    sys.exit(run("resume", lambda report: run_tests(report, *FILES)))
