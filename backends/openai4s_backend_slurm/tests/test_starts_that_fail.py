"""Sessions that never come to life, on real daemons: the person is told why, one job was tried, none is left.

What is missing on a node; a job that dies before its worker dials; a profile that its partition can never serve.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster

from .conftest import NewPerson
from .people import Person, PersonError
from .session_jobs import ANYWHERE, NAMED, jobs, nothing_left

pytestmark = pytest.mark.timeout(600)


def never_starts(person: Person, cluster: Cluster, wait_until: Any) -> str:
    """What the person is told; one job was tried, and nothing is left."""
    with pytest.raises(PersonError) as refusal:
        person.ask("start")
    assert len(jobs(cluster)) == 1, person.story()
    nothing_left(cluster, wait_until)
    return str(refusal.value)


def test_a_job_that_dies_before_its_worker_dials_shows_its_last_lines(
    some_cluster: Cluster, new_person: NewPerson, ordinary_user: Any, wait_until: Any
) -> None:
    broken = ordinary_user.home / "broken"
    broken.unlink(missing_ok=True)
    prologue = f"if [ -e {broken} ]; then echo 'the licence server is down'; exit 3; fi"
    person = new_person(some_cluster, f'{ANYWHERE}\nprologue = """{prologue}"""')
    broken.touch()
    said = never_starts(person, some_cluster, wait_until)
    assert "the worker in it could not be started" in said
    assert "the licence server is down" in said


MISSING = {
    "python": (Path(sys.executable).parent, "the worker in it could not be started", "No such file"),
    "sandbox": (Path("/usr/bin/bwrap"), "could not be proven to be isolated", "bubblewrap"),
    "workspace": (None, "cannot use the workspace folder", "workspace"),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="to take something away from one node needs root")
@pytest.mark.parametrize("what", MISSING)
def test_what_is_missing_on_the_node_is_named(
    some_cluster: Cluster, new_person: NewPerson, wait_until: Any, what: str
) -> None:
    path, told, named = MISSING[what]
    person = new_person(some_cluster, 'partition = "cpu"\nnodelist = "c1"')
    some_cluster.hide("c1", path or person.work)
    said = never_starts(person, some_cluster, wait_until)
    assert told in said, said
    assert named in said, said


def test_what_can_never_start_says_why_and_what_to_do(
    some_cluster: Cluster, new_person: NewPerson, wait_until: Any
) -> None:
    """The cluster takes the job, and would keep it for ever."""
    cluster, person = some_cluster, new_person(some_cluster, 'partition = "cpu"\nwalltime_s = 864000')
    told = never_starts(person, cluster, wait_until)
    assert "the profile asks for more time than its machines are granted for. Choose less time" in told
    (session,) = person.ask("shown")
    assert (session["state"], session["reason"]["code"]) == ("ended", "UNSCHEDULABLE")
    assert session["reason"]["detail"] in told
    assert session["reason"]["detail"] in session["sentence"]
    assert not NAMED.search(told + session["sentence"])
    assert "CANCELLED" in session["detail"], "the raw text stands beside it"
