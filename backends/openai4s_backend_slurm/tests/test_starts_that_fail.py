"""Sessions that never come to life, on real daemons: the person is told why, one job was tried at most, none is left.

What is missing on a node; a job that dies before its worker dials; profiles that no partition can serve; sites whose
submission command is a wrapper with habits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster

from .clocks import CLOCKS
from .conftest import NewPerson
from .people import Person, PersonError
from .session_jobs import ANYWHERE, jobs, nothing_left, only_job, only_running

pytestmark = pytest.mark.timeout(600)


def never_starts(person: Person, cluster: Cluster, wait_until: Any, tried: int = 1) -> str:
    """What the person is told; so many jobs were tried, and nothing is left."""
    with pytest.raises(PersonError) as refusal:
        person.ask("start")
    assert len(jobs(cluster)) == tried, person.story()
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


# -- profiles that no partition can serve ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "told"),
    [
        ('partition = "cpu"\nwalltime_s = 864000', "more time than its"),
        ('partition = "cpu"\nnodes = 3', "more machines than"),
        ('partition = "cpu"\ncpus = 64', "exclude what the profile asks for"),
    ],
)
def test_what_no_partition_can_serve_is_said_and_leaves_no_job(
    some_cluster: Cluster, new_person: NewPerson, wait_until: Any, profile: str, told: str
) -> None:
    """The cluster takes the job, and would keep it for ever."""
    person = new_person(some_cluster, profile)
    never_starts(person, some_cluster, wait_until)
    person.heard(lambda event: event["phase"] == "PENDING" and told in event["sentence"], "why it will never start")
    person.ended("UNSCHEDULABLE")


def test_what_the_cluster_does_not_even_take_is_said_and_leaves_no_job(
    some_cluster: Cluster, ordinary_user: Any, wait_until: Any
) -> None:
    some_cluster.count_from_here()
    with Person(ordinary_user, some_cluster, 'partition = "gpu"\ngpus = 9', **CLOCKS) as person:
        said = never_starts(person, some_cluster, wait_until, tried=0)
    assert "No machine of this cluster can ever grant what the profile asks for" in said, said


# -- a site whose submission command is a wrapper ----------------------------------------------------------------------

WITH_A_BANNER = """#!/bin/sh
echo '*** maintenance on 12 May ***'
echo 'Job 77 of you is running' >&2
sbatch "$@" || exit
echo 'thank you'
"""
WITHOUT_COMMENTS = """#!/bin/sh
for word; do
    case $word in --comment=*) echo "sbatch: unrecognized option '$word'" >&2; exit 1 ;; esac
done
exec sbatch "$@"
"""
Wrapped = Callable[[str], str]


@pytest.fixture
def wrapped(ordinary_user: Any) -> Wrapped:
    """`wrapped(text)`: the line of `cluster.toml` for a submission command with this text."""

    def write(text: str) -> str:
        command = ordinary_user.home / "site-sbatch"
        command.write_text(text)
        command.chmod(0o755)
        return f'commands = {{ sbatch = "{command}" }}'

    return write


def test_a_wrapper_that_prints_a_banner_is_understood(
    some_cluster: Cluster, new_person: NewPerson, wrapped: Wrapped, wait_until: Any
) -> None:
    person = new_person(some_cluster, ANYWHERE, wrapped(WITH_A_BANNER))
    person.start()
    assert person.value("6 * 7") == "42"
    assert only_running(some_cluster) == only_job(some_cluster)
    person.ask("shut_down")
    nothing_left(some_cluster, wait_until)


def test_a_wrapper_that_refuses_an_option_is_named_with_the_remedy_which_then_works(
    some_cluster: Cluster, new_person: NewPerson, ordinary_user: Any, wrapped: Wrapped, wait_until: Any
) -> None:
    backend = wrapped(WITHOUT_COMMENTS)
    some_cluster.count_from_here()
    with Person(ordinary_user, some_cluster, ANYWHERE, backend, **CLOCKS) as person:
        said = never_starts(person, some_cluster, wait_until, tried=0)
        assert "unrecognized option '--comment=" in said, said
        assert "Add --comment to remove_options of the profile" in said, said
    person = new_person(some_cluster, f'{ANYWHERE}\nremove_options = ["--comment"]', backend)
    person.start()
    assert person.value("6 * 7") == "42"
    person.ask("shut_down")
    nothing_left(some_cluster, wait_until)


# -- a `cluster.toml` with a mistake -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "backend", "line", "told"),
    [
        (f'{ANYWHERE}\nqoss = "high"', "", 'qoss = "high"', "knows no key 'qoss'"),
        (f"{ANYWHERE}\nexclusive = 1", "", "exclusive = 1", "exclusive = 1 is neither true nor false"),
        (f'{ANYWHERE}\nmodules = ["-x"]', "", 'modules = ["-x"]', "modules holds '-x'"),
        (ANYWHERE, 'commands = { rm = "/bin/rm" }', 'commands = { rm = "/bin/rm" }', "commands knows no 'rm'"),
        (ANYWHERE, "cluster = 3", "cluster = 3", "cluster = 3 is not text"),
        (ANYWHERE, "colour = 'blue'", "colour = 'blue'", "knows no key 'colour'"),
    ],
)
def test_a_mistake_in_the_site_s_file_is_named_with_its_line(
    cluster: Cluster, ordinary_user: Any, wait_until: Any, profile: str, backend: str, line: str, told: str
) -> None:
    with Person(ordinary_user, cluster, profile, backend) as person:
        said = never_starts(person, cluster, wait_until, tried=0)
        lines = (person.root / "cluster.toml").read_text().splitlines()
    assert told in said, said
    assert f"cluster.toml, line {lines.index(line) + 1}" in said, said
