"""What ends a session's job for good, on real daemons: out of time; its node, or the job itself, taken away.

While nobody is connected, nothing is started again: the reason is what the person finds.
"""

from __future__ import annotations

from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster

from .clocks import ONE_POLL_S
from .conftest import NewPerson
from .session_jobs import MAY_REQUEUE, NAMED, ended, only_job

pytestmark = pytest.mark.timeout(600)


def test_its_time_runs_out(either_cluster: Cluster, new_person: NewPerson, wait_until: Any) -> None:
    cluster, person = either_cluster, new_person(either_cluster)
    person.start()
    job = only_job(cluster)
    cluster.admin.end_time(job)
    wait_until(lambda: cluster.admin.state(job) == "TIMEOUT", "Slurm to look at the clock, every 30 s", 70)
    ended(person, cluster, "TIME_LIMIT_EXCEEDED", wait_until)


def test_its_node_fails_while_nobody_is_there(either_cluster: Cluster, new_person: NewPerson, wait_until: Any) -> None:
    cluster, person = either_cluster, new_person(either_cluster)
    person.ask("start")
    cluster.admin.node_down(cluster.admin.node_of(only_job(cluster)))
    ended(person, cluster, "NODE_FAILED", wait_until)


def test_it_is_preempted_while_nobody_is_there(either_cluster: Cluster, new_person: NewPerson, wait_until: Any) -> None:
    cluster, person = either_cluster, new_person(either_cluster, 'partition = "scavenge"')
    person.ask("start")
    important = cluster.admin.preempt(cluster.admin.node_of(only_job(cluster)))
    person.ended("PREEMPTED", ONE_POLL_S)
    cluster.admin.cancel(important)
    ended(person, cluster, "PREEMPTED", wait_until)


@pytest.mark.parametrize("who", ["owner", "system"])
def test_it_is_put_back_into_the_queue_while_nobody_is_there_which_is_said_with_what_to_do(
    either_cluster: Cluster, new_person: NewPerson, user_runs: Any, wait_until: Any, who: str
) -> None:
    """Where a site takes `--no-requeue` away."""
    cluster, person = either_cluster, new_person(either_cluster, MAY_REQUEUE)
    person.ask("start")
    job = only_job(cluster)
    if who == "owner":
        user_runs(cluster, "scontrol", "requeue", job)
    else:
        cluster.admin.node_down(cluster.admin.node_of(job))
    ended(person, cluster, "PREEMPTED", wait_until)
    (session,) = person.ask("shown")
    assert "put back into the queue" in session["reason"]["detail"]
    assert session["sentence"].endswith(session["reason"]["remedy"])
    assert session["reason"]["detail"] in session["sentence"]
    assert not NAMED.search(session["sentence"])
