"""Commands without a kernel: each is a job of its own that needs no server, and a terminal submits and settles it."""

from __future__ import annotations

import signal
import sys
from typing import Any

from openai4s_backend_slurm.lab import Cluster

from .homes import Home

CLI = [sys.executable, "-m", "openai4s_provisioner.jupyter.cli"]


def says(home: Home, *words: str, code: int = 0) -> str:
    process = home.popen([*CLI, *words], cwd=home.work, stdout=-1, stderr=-1, text=True)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, (words, out, err, process.returncode)
    return out.strip()


def test_a_command_is_a_job_whose_end_and_output_are_known(ordinary_user: Any, cluster: Cluster) -> None:
    with Home(ordinary_user, cluster, 'partition = "cpu"') as home:
        good = says(home, "submit", "--", "sh", "-c", "echo hello from $(id -u); pwd")
        assert says(home, "wait", good) == ""
        assert says(home, "logs", good).splitlines() == [f"hello from {ordinary_user.uid}", str(home.work)]
        bad = says(home, "submit", "--", "sh", "-c", "exit 7")
        says(home, "wait", bad, code=7)
        assert "exit code 7" in says(home, "show", bad)


def test_a_command_is_stopped_and_leaves_no_job(ordinary_user: Any, cluster: Cluster, wait_until: Any) -> None:
    with Home(ordinary_user, cluster, 'partition = "cpu"') as home:
        long = says(home, "submit", "--", "sleep", "600")
        says(home, "stop", long)
        wait_until(lambda: not cluster.run(["squeue", "-h"]).stdout.split(), "no job is left", 40)
        assert "USER_CANCELLED" in says(home, "show", long)


def test_a_terminal_that_is_interrupted_while_isolation_is_checked_leaves_the_check_to_the_next_one(
    ordinary_user: Any, cluster: Cluster, wait_until: Any
) -> None:
    """The check waits behind somebody's job; each terminal is a process of its own, and no second check is queued."""
    fresh = 'partition = "cpu"\nnodelist = "c1"\nprologue = "export CHECKED_ANEW=1"'
    with Home(ordinary_user, cluster, fresh) as home:
        important = cluster.admin.occupy("c1")
        cluster.count_from_here()

        def checks() -> list[str]:
            jobs = cluster.admin.jobs(are_over=True)
            return [job["state"] for job in jobs if int(job["id"]) > cluster.swept_up_to]

        process = home.popen([*CLI, "submit", "--", "true"], cwd=home.work, stdout=-1, stderr=-1, text=True)
        wait_until(lambda: checks() == ["PENDING"], "the check to be queued", 40)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)
        assert process.returncode == 130, said
        cluster.admin.cancel(important)
        wait_until(lambda: checks() == ["COMPLETED"], "the check to end, though nobody waits for it", 40)
        identity = says(home, "submit", "--", "true")
        assert says(home, "wait", identity) == ""
        assert checks() == ["COMPLETED"] * 2, "one check, and the command"
