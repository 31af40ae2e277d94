"""Jobs that the site suspends: they live, their sessions say so, and go on with everything when the site lets them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster

from .clocks import A_WHILE_S, CLOCKS
from .people import Person
from .session_jobs import jobs, nothing_left, only_job

pytestmark = pytest.mark.timeout(600)
LOST_S = 5.0
PROFILE = 'partition = "cpu"'


@pytest.fixture
def person(ordinary_user: Any, cluster: Cluster) -> Iterator[Person]:
    """With a running kernel that remembers something, and a control plane that soon takes silence for a loss."""
    with Person(ordinary_user, cluster, PROFILE, control=f"worker_lost_s = {LOST_S}", **CLOCKS) as person:
        assert person.ask("prove") == ""
        cluster.count_from_here()
        person.start()
        assert person.ask("run", code="remembered = 42")["status"] == "ok"
        yield person


def suspended(person: Person, cluster: Cluster) -> str:
    job: str = only_job(cluster)
    cluster.admin.command("scontrol", "suspend", job)
    person.heard(lambda event: "Paused by the site since" in event["sentence"], "that it is paused", 2 * A_WHILE_S)
    return job


def test_a_session_outlives_a_suspension_that_is_longer_than_any_silence_may_be(
    person: Person, cluster: Cluster, wait_until: Any
) -> None:
    job = suspended(person, cluster)
    paused_at = person.events[-1]["at"]
    wait_until(lambda: any(line.startswith("paused ") for line in person.ask("recorded")), "that it is recorded", 10)
    wait_until(lambda: person.ask("silent_for_s") > 2 * LOST_S, "its worker to be silent for long", 3 * A_WHILE_S)
    assert cluster.admin.state(job) == "SUSPENDED", person.story()
    cluster.admin.command("scontrol", "resume", job)
    assert person.value("remembered") == "42"
    person.heard(lambda event: event["sentence"].startswith("4 of 4") and event["at"] > paused_at, "that it goes on")
    assert [each["id"] for each in jobs(cluster)] == [job], "no other job was needed"
    person.ask("shut_down")
    nothing_left(cluster, wait_until)


def test_a_suspended_session_can_be_given_up(person: Person, cluster: Cluster, wait_until: Any) -> None:
    suspended(person, cluster)
    person.ask("shut_down")
    nothing_left(cluster, wait_until)
