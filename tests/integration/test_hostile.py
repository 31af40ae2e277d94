"""The check `hostile`, with a small crowd and few inputs: the same program, the same expectations."""

from __future__ import annotations

import subprocess
import sys

from checks.parts.place import REPOSITORY


def test_a_crowd_at_the_port_gets_nothing_and_disturbs_nobody() -> None:
    command = [sys.executable, "-m", "checks.hostile", "--peers", "150", "--seconds", "8", "--dribble", "1"]
    command += ["--fuzz", "5000", "--coverage", "5000"]
    ran = subprocess.run(command, cwd=REPOSITORY, text=True, capture_output=True, timeout=110, check=False)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert ran.stdout.splitlines()[-1].startswith("PASS hostile: ")
