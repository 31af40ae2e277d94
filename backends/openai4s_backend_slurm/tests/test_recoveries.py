"""What takes a session's job away while somebody is connected: it is followed by another one, and never by two.

On real daemons, with and without accounting: a node that fails, one whose daemon dies while its processes live on,
preemption, and a job that is put back into the queue.
"""

from __future__ import annotations

from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster
from openai4s_backend_slurm.lab.errors import LabError

from .clocks import A_WHILE_S, FULL
from .conftest import NewPerson
from .session_jobs import MAY_REQUEUE, jobs, nothing_left, only_running, recovered, used

pytestmark = pytest.mark.timeout(600)


def test_a_failed_node_s_session_comes_back_elsewhere(
    either_cluster: Cluster, new_person: NewPerson, wait_until: Any
) -> None:
    cluster, person = either_cluster, new_person(either_cluster)
    job = used(person, cluster)
    cluster.admin.node_down(cluster.admin.node_of(job))
    recovered(person, cluster, job, "NODE_FAILED")
    person.ask("shut_down")
    nothing_left(cluster, wait_until)


def test_a_ghost_does_not_serve_the_session(either_cluster: Cluster, new_person: NewPerson, wait_until: Any) -> None:
    """A node's daemon dies; its processes live on, and Slurm calls the job failed."""
    cluster, person = either_cluster, new_person(either_cluster)
    job = used(person, cluster)
    ghosts = {process.pid for process in cluster.job_processes()}
    node = cluster.admin.node_of(job)
    cluster.nodes[node].kill()
    if FULL:
        wait_until(lambda: cluster.admin.state(job) == "NODE_FAIL", "Slurm to miss the node", A_WHILE_S)
    else:
        cluster.admin.node_down(node)  # what it finds itself after SlurmdTimeout
    recovered(person, cluster, job, "NODE_FAILED")
    person.ask("shut_down")
    wait_until(lambda: not jobs(cluster, are_over=False), "no job is left in the queue", A_WHILE_S)
    wait_until(
        lambda: not ghosts & {process.pid for process in cluster.job_processes()}, "the ghost to give up", A_WHILE_S
    )


def test_a_preempted_session_comes_back_elsewhere(
    either_cluster: Cluster, new_person: NewPerson, wait_until: Any
) -> None:
    cluster, person = either_cluster, new_person(either_cluster, 'partition = "scavenge"')
    job = used(person, cluster)
    important = cluster.admin.preempt(cluster.admin.node_of(job))
    recovered(person, cluster, job, "PREEMPTED")
    cluster.admin.cancel(important)
    person.ask("shut_down")
    nothing_left(cluster, wait_until)


@pytest.mark.parametrize("who", ["owner", "system"])
def test_a_requeued_job_does_not_serve_the_session(
    either_cluster: Cluster, new_person: NewPerson, user_runs: Any, wait_until: Any, who: str
) -> None:
    """Where a site takes `--no-requeue` away, a job may start again by itself, and must not."""
    cluster, person = either_cluster, new_person(either_cluster, MAY_REQUEUE)
    job = used(person, cluster)
    if who == "owner":
        user_runs(cluster, "scontrol", "requeue", job)
    else:
        cluster.admin.node_down(cluster.admin.node_of(job))
    recovered(person, cluster, job, "PREEMPTED")
    (why,) = [line for line in person.ask("recorded") if line.startswith("recovering ")]
    assert "It was put back into the queue, where the kernel's memory could not follow" in why
    person.ask("shut_down")
    nothing_left(cluster, wait_until)


def test_a_job_is_not_put_back_into_the_queue_by_anybody(
    some_cluster: Cluster, new_person: NewPerson, wait_until: Any
) -> None:
    """Where the site leaves `--no-requeue` alone: not even an administrator's hand does it, and the session goes on."""
    person = new_person(some_cluster)
    job = used(person, some_cluster)
    with pytest.raises(LabError, match="disabled for job"):
        some_cluster.admin.requeue(job)
    assert person.value("x") == "41"
    assert only_running(some_cluster) == job
    person.ask("shut_down")
    nothing_left(some_cluster, wait_until)
