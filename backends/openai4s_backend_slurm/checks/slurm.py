"""Sessions on real Slurm clusters that this check starts: one node and several, with their tasks, limits and devices.

At full length, as an ordinary user: the bundled notebook in every way, GPUs, gangs of two and four nodes, a task over
four nodes, a node that fails, time limits, memory and devices under real control groups.
"""

from __future__ import annotations

import sys

from checks.parts.report import run
from checks.parts.suite import run_tests

_FOLDER = "backends/openai4s_backend_slurm/tests"
FILES = (
    "test_gpu_session",
    "test_notebooks",
    "test_firewall",
    "test_gangs",
    "test_extending",
    "test_cgroups",
)

if __name__ == "__main__":
    sys.exit(run("slurm", lambda report: run_tests(report, *(f"{_FOLDER}/{name}.py" for name in FILES))))
