"""Kernels of other languages: R over ipc, and one that can only do TCP, in a network of its own."""

from __future__ import annotations

import sys

from .parts.report import run
from .parts.suite import run_tests

FILES = ("tests/integration/test_languages.py", "tests/integration/worker/test_tcp_only_kernel.py")

if __name__ == "__main__":
    sys.exit(run("languages", lambda report: run_tests(report, *FILES)))
