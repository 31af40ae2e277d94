"""The scale check at short length: a turn in which nothing changed writes nothing, and grows with the workloads."""

from __future__ import annotations

import subprocess
import sys

from checks.parts.place import REPOSITORY


def test_a_turn_over_a_hundred_workloads_asks_once_and_writes_nothing() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "checks.scale", "--quick"],
        cwd=REPOSITORY,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stdout
