"""What a test asks a real cluster of its sessions' jobs: which there were, and whether anything of them is left.

The clusters are swept between tests, but remember: only jobs of the test that runs now are counted.
"""

from __future__ import annotations

import re
from typing import Any

from openai4s_backend_slurm.lab import Cluster

from .clocks import A_WHILE_S, ONE_POLL_S
from .people import Person

ANYWHERE = 'partition = "all"'
ONE_NODE = 'partition = "cpu"\nnodelist = "c1"\nexclusive = true'  # which a test can occupy
MAY_REQUEUE = 'partition = "cpu"\nremove_options = ["--no-requeue"]'
NAMED = re.compile(r"(?i)partition|qos|quality of service")  # what is read by everybody names neither
ACCOUNTING_LAGS_S = 10.0  # it hears of an end a little later than the queue


def jobs(cluster: Cluster, *, are_over: bool = True) -> list[dict[str, str]]:
    found = cluster.admin.jobs(are_over=are_over)
    return [job for job in found if job["name"].startswith("o4s-") and int(job["id"]) > cluster.swept_up_to]


def only_job(cluster: Cluster) -> str:
    (job,) = jobs(cluster)
    return job["id"]


def only_running(cluster: Cluster) -> str:
    (job,) = jobs(cluster, are_over=False)
    return job["id"]


def nothing_left(cluster: Cluster, wait_until: Any) -> None:
    wait_until(lambda: not jobs(cluster, are_over=False), "no job is left in the queue", A_WHILE_S)
    wait_until(lambda: not cluster.job_processes(), "no process of a job is left", A_WHILE_S)


def ended(
    person: Person, cluster: Cluster, reason: str, wait_until: Any, within_s: float = ONE_POLL_S
) -> dict[str, Any]:
    """It ended for this reason in time, after one job, of which nothing is left."""
    event = person.ended(reason, within_s)
    assert len(jobs(cluster)) == 1, jobs(cluster)
    nothing_left(cluster, wait_until)
    return event


def used(person: Person, cluster: Cluster) -> str:
    """A session with something in its kernel's memory, and somebody connected; its job."""
    person.start()
    person.ask("run", code="x = 41")
    return only_job(cluster)


def recovered(person: Person, cluster: Cluster, before: str, *reasons: str, within_s: float = ONE_POLL_S) -> None:
    """Why is said in time; then another job, whose kernel knows nothing of the first one; never both."""
    person.heard(lambda event: event["reason"] in reasons, f"that it is started again for {reasons}", within_s)
    person.heard(lambda event: event["reason"] == "KERNEL_STATE_LOST", "that the memory is lost", A_WHILE_S)
    person.ask("connect")
    assert person.value("x") == "NameError"
    first, second = sorted(int(job["id"]) for job in jobs(cluster))
    assert (str(first), str(second)) == (before, only_running(cluster))
