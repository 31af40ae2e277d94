"""Every fault that a site has, on real daemons: the stated reason, one job for each epoch, nothing left behind.

The person is an ordinary user with a kernel manager; the test is the fault. With OPENAI4S_FULL the clocks are those of
the product; otherwise they are short, and the daemons real all the same.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster

from .people import Person, PersonError

pytestmark = pytest.mark.timeout(600)
FULL = "OPENAI4S_FULL" in os.environ
CLOCKS: dict[str, Any] = {"period_s": 5.0, "settle_s": 60.0, "call_deadline_s": 30, "deadline_s": 20} if FULL else {}
ONE_POLL_S = 10.0 + (5.0 if FULL else 0.5)  # the period, and what a busy machine may need for one look
A_WHILE_S = 120.0 if FULL else 40.0
ANYWHERE = 'partition = "all"'

NewPerson = Callable[..., Person]
VARIANTS = ["without accounting", "with accounting"]


@pytest.fixture(params=VARIANTS if FULL else VARIANTS[:1])
def some_cluster(request: pytest.FixtureRequest) -> Cluster:
    """For what accounting has no part in: at full length with it all the same."""
    found: Cluster = request.getfixturevalue("cluster" if request.param == VARIANTS[0] else "accounting_cluster")
    return found


@pytest.fixture
def new_person(ordinary_user: Any) -> Iterator[NewPerson]:
    """`new_person(cluster, profile)`: a person at work; all of them go home at the end."""
    with contextlib.ExitStack() as home:

        def arrive(cluster: Cluster, profile: str = ANYWHERE) -> Person:
            person = home.enter_context(Person(ordinary_user, cluster, profile, **CLOCKS))
            assert person.ask("prove") == ""  # by a job of its own, which is not the one that a test counts
            cluster.count_from_here()
            return person

        yield arrive


@pytest.fixture
def user_runs(ordinary_user: Any) -> Callable[..., str]:
    """`user_runs(cluster, *argv)`: the owner's own terminal."""

    def run(cluster: Cluster, *argv: str) -> str:
        done = ordinary_user.run(list(argv), env=cluster.client_environment())
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    return run


def jobs(cluster: Cluster, *, are_over: bool = True) -> list[dict[str, str]]:
    """Sessions' jobs of the test that runs now: the clusters are swept in between, but remember."""
    found = cluster.admin.jobs(are_over=are_over)
    return [job for job in found if job["name"].startswith("o4s-") and int(job["id"]) > cluster.swept_up_to]


def only_job(cluster: Cluster) -> str:
    (job,) = jobs(cluster)
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


# -- cancelled from outside ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["owner", "administrator"])
def test_cancelled_while_it_runs(
    either_cluster: Cluster, new_person: NewPerson, user_runs: Any, wait_until: Any, who: str
) -> None:
    cluster, person = either_cluster, new_person(either_cluster)
    person.start()
    if who == "owner":
        user_runs(cluster, "scancel", only_job(cluster))
    else:
        cluster.admin.cancel(only_job(cluster))
    known = who == "owner" and cluster.shape.accounting  # without accounting nobody remembers whose hand it was
    # Accounting hears of it a little later than the queue.
    late = 10.0 if cluster.shape.accounting else 0.0
    ended(person, cluster, "USER_CANCELLED" if known else "ADMIN_CANCELLED", wait_until, ONE_POLL_S + late)


@pytest.mark.parametrize("who", ["owner", "administrator"])
def test_cancelled_while_it_waits(
    either_cluster: Cluster, new_person: NewPerson, user_runs: Any, wait_until: Any, who: str
) -> None:
    cluster = either_cluster
    person = new_person(cluster, 'partition = "cpu"\nnodelist = "c1"\nexclusive = true')
    cluster.admin.occupy("c1")
    start = person.begin("start")
    person.heard(lambda event: event["phase"] == "PENDING" and "machines" in event["sentence"], "why it waits")
    if who == "owner":
        user_runs(cluster, "scancel", only_job(cluster))
    else:
        cluster.admin.cancel(only_job(cluster))
    with pytest.raises(PersonError, match="stopped"):
        person.answer(start)
    assert len(jobs(cluster)) == 1
    wait_until(lambda: not jobs(cluster, are_over=False), "no job is left in the queue")


def test_given_up_while_it_waits(either_cluster: Cluster, new_person: NewPerson, wait_until: Any) -> None:
    cluster = either_cluster
    person = new_person(cluster, 'partition = "cpu"\nnodelist = "c1"\nexclusive = true')
    cluster.admin.occupy("c1")
    start = person.begin("start")
    person.heard(lambda event: event["phase"] == "PENDING", "that it waits")
    person.ask("give_up")
    with pytest.raises(PersonError, match="given up"):
        person.answer(start)
    person.ended("USER_CANCELLED", A_WHILE_S)
    assert len(jobs(cluster)) == 1
    wait_until(lambda: not jobs(cluster, are_over=False), "no job is left in the queue")


# -- what ends a job -------------------------------------------------------------------------------------------------


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


# -- what ends a job is followed by another one, while somebody is connected -----------------------------------------


def recovered(person: Person, cluster: Cluster, before: str) -> None:
    """Another job, whose kernel knows nothing of the first one; never both."""
    person.heard(lambda event: event["reason"] == "KERNEL_STATE_LOST", "that the memory is lost", A_WHILE_S)
    person.ask("connect")
    assert person.value("x") == "NameError"
    first, second = sorted(int(job["id"]) for job in jobs(cluster))
    assert (str(first), str(second)) == (before, only_running(cluster))


def only_running(cluster: Cluster) -> str:
    (job,) = jobs(cluster, are_over=False)
    return job["id"]


def used(person: Person, cluster: Cluster) -> str:
    person.start()
    person.ask("run", code="x = 41")
    return only_job(cluster)


def test_a_failed_node_s_session_comes_back_elsewhere(
    either_cluster: Cluster, new_person: NewPerson, wait_until: Any
) -> None:
    cluster, person = either_cluster, new_person(either_cluster)
    job = used(person, cluster)
    cluster.admin.node_down(cluster.admin.node_of(job))
    recovered(person, cluster, job)
    person.ask("shut_down")
    nothing_left(cluster, wait_until)


def test_a_ghost_does_not_serve_the_session(cluster: Cluster, new_person: NewPerson, wait_until: Any) -> None:
    """A node's daemon dies; its processes live on, and Slurm calls the job failed."""
    person = new_person(cluster)
    job = used(person, cluster)
    ghosts = {process.pid for process in cluster.job_processes()}
    node = cluster.admin.node_of(job)
    cluster.nodes[node].kill()
    cluster.admin.node_down(node)  # what Slurm finds itself after SlurmdTimeout
    recovered(person, cluster, job)
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
    recovered(person, cluster, job)
    cluster.admin.cancel(important)
    person.ask("shut_down")
    nothing_left(cluster, wait_until)


@pytest.mark.parametrize("who", ["owner", "system"])
def test_a_requeued_job_does_not_serve_the_session(
    either_cluster: Cluster, new_person: NewPerson, user_runs: Any, wait_until: Any, who: str
) -> None:
    """Where a site takes `--no-requeue` away, a job may start again by itself, and must not."""
    profile = 'partition = "cpu"\nremove_options = ["--no-requeue"]'
    cluster, person = either_cluster, new_person(either_cluster, profile)
    job = used(person, cluster)
    if who == "owner":
        user_runs(cluster, "scontrol", "requeue", job)
    else:
        cluster.admin.node_down(cluster.admin.node_of(job))
    recovered(person, cluster, job)
    person.ask("shut_down")
    nothing_left(cluster, wait_until)


# -- what never comes to life ----------------------------------------------------------------------------------------


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


# -- daemons that do not answer --------------------------------------------------------------------------------------

DAEMONS = ["controller stopped", "controller hung", "munged stopped"]


@contextlib.contextmanager
def unreachable(cluster: Cluster, how: str) -> Iterator[None]:
    name, _, what = how.partition(" ")
    daemon = cluster.munge if name == "munged" else cluster.controller
    with daemon.hung() if what == "hung" else daemon.stopped():
        yield
    cluster.wait(cluster.answers, "the controller to answer again")


@pytest.mark.parametrize("how", DAEMONS)
def test_a_running_session_does_not_notice(cluster: Cluster, new_person: NewPerson, wait_until: Any, how: str) -> None:
    person = new_person(cluster)
    job = used(person, cluster)
    with unreachable(cluster, how):
        wait_until(lambda: person.complaints(), "one line in the log says that nobody answers", A_WHILE_S)
        assert person.value("x") == "41"
    assert person.value("x") == "41"
    assert only_running(cluster) == job
    person.ask("shut_down")
    person.ended("USER_CANCELLED")
    nothing_left(cluster, wait_until)
    assert len(person.complaints()) == 1, person.story()


@pytest.mark.parametrize("how", DAEMONS)
def test_asked_for_while_nobody_answers(
    some_cluster: Cluster, new_person: NewPerson, wait_until: Any, how: str
) -> None:
    """Nothing is sent before it can be asked whether it was: one job, as soon as somebody answers."""
    cluster = some_cluster
    person = new_person(cluster)
    with unreachable(cluster, how):
        start = person.begin("start")
        person.heard(lambda event: "does not answer" in event["sentence"], "that nobody answers", A_WHILE_S)
    person.answer(start, 3 * A_WHILE_S)
    person.ask("connect")
    assert person.value("6 * 7") == "42"
    assert only_running(cluster) == only_job(cluster)
    person.ask("shut_down")
    nothing_left(cluster, wait_until)


@pytest.mark.parametrize("how", DAEMONS)
def test_shut_down_while_nobody_answers(
    some_cluster: Cluster, new_person: NewPerson, wait_until: Any, how: str
) -> None:
    cluster = some_cluster
    person = new_person(cluster)
    used(person, cluster)
    with unreachable(cluster, how):
        person.ask("shut_down")
        wait_until(lambda: not cluster.kernels(), "the kernel to have ended", A_WHILE_S)
    person.ended("USER_CANCELLED", A_WHILE_S)
    assert len(jobs(cluster)) == 1
    nothing_left(cluster, wait_until)


def test_accounting_that_is_away_changes_nothing(
    accounting_cluster: Cluster, new_person: NewPerson, wait_until: Any
) -> None:
    cluster, person = accounting_cluster, new_person(accounting_cluster)
    assert cluster.accounting is not None
    with cluster.accounting.stopped():
        used(person, cluster)
        assert person.value("x") == "41"
        person.ask("shut_down")
        person.ended("USER_CANCELLED", A_WHILE_S)
        nothing_left(cluster, wait_until)
    assert len(jobs(cluster)) == 1


# -- answers that are lost --------------------------------------------------------------------------------------------

HELD = """#!/bin/sh
touch {mark}.asked
while [ -e {mark}.hold ]; do sleep 0.05; done
exec sbatch "$@"
"""


def test_a_controller_that_hangs_while_a_job_is_handed_in(
    some_cluster: Cluster, ordinary_user: Any, wait_until: Any
) -> None:
    """The submission is on its way when the controller stops listening: its answer is lost, and it lands later."""
    cluster, mark = some_cluster, ordinary_user.home / "sbatch"
    wrapper = ordinary_user.home / "held-sbatch"
    wrapper.write_text(HELD.format(mark=mark))
    wrapper.chmod(0o755)
    hold, asked = Path(f"{mark}.hold"), Path(f"{mark}.asked")
    with Person(ordinary_user, cluster, ANYWHERE, f'commands = {{ sbatch = "{wrapper}" }}', **CLOCKS) as person:
        assert person.ask("prove") == ""
        cluster.count_from_here()
        asked.unlink()
        hold.touch()
        start = person.begin("start")
        wait_until(asked.exists, "the job to be on its way", A_WHILE_S)
        with cluster.controller.hung():
            hold.unlink()
            person.heard(lambda event: "not known yet" in event["sentence"], "that the outcome is open", A_WHILE_S)
        person.answer(start, 3 * A_WHILE_S)
        assert only_running(cluster) == only_job(cluster)
        person.ask("shut_down")
        nothing_left(cluster, wait_until)
