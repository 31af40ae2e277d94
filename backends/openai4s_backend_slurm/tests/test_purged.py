"""Jobs that end while nobody can ask, and that the controller has forgotten by the time somebody can.

A real controller that remembers what is over for a few seconds only (MinJobAge), and a login host that falls silent
meanwhile. Witnesses are then accounting, and what the job itself wrote down; where there is none, it is lost, after the
debounce, and never taken for a good end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster, Shape, leftovers
from openai4s_backend_slurm.lab.login_host import LoginHost, login_host

from .clocks import A_WHILE_S, DEBOUNCE_S, ONE_POLL_S
from .conftest import NewPerson, one_user, started
from .people import Person, PersonError
from .session_jobs import ONE_NODE

pytestmark = pytest.mark.timeout(600)

LOST_S = DEBOUNCE_S + 2 * ONE_POLL_S  # one look that misses it first, one after the debounce
LABELS = ["without accounting", "with accounting"]


@pytest.fixture(scope="module", params=[False, True], ids=LABELS)
def forgetful(request: pytest.FixtureRequest, run_mark: str, ordinary_user: Any) -> Iterator[Cluster]:
    shape = Shape(accounting=request.param, one_user=one_user(), settings={"MinJobAge": "2"})
    with started(shape, ordinary_user.name) as cluster:
        yield cluster


@pytest.fixture
def cluster(forgetful: Cluster) -> Iterator[Cluster]:
    forgetful.restore()
    yield forgetful
    forgetful.restore()


@pytest.fixture
def host(cluster: Cluster) -> Iterator[LoginHost]:
    with login_host(cluster) as found:
        yield found


@pytest.fixture
def at_work(cluster: Cluster, host: LoginHost, new_person: NewPerson) -> Callable[..., Person]:
    return lambda profile='partition = "cpu"': new_person(cluster, profile, f'slurm_conf = "{host.conf}"')


class Silence:
    """From `with` to its end the login host cannot ask; before that, the controller has forgotten the job."""

    def __init__(self, cluster: Cluster, host: LoginHost, person: Person, wait_until: Any) -> None:
        self._cluster = cluster
        self._host = host
        self._person = person
        self._wait_until = wait_until
        self._job = next(job["id"] for job in cluster.admin.jobs() if job["name"].startswith("o4s-"))
        self._stack = ExitStack()

    def __enter__(self) -> str:
        self._stack.enter_context(self._host.munge.stopped())
        self._wait_until(self._person.complaints, "that the cluster cannot be asked", A_WHILE_S)
        return self._job

    def __exit__(self, *exception: object) -> None:
        with self._stack:
            if exception[0] is None:
                known = self._cluster.admin.state
                self._wait_until(lambda: not known(self._job), "the controller to have forgotten it", 90)


@pytest.fixture
def silence(cluster: Cluster, host: LoginHost, wait_until: Any) -> Callable[[Person], Silence]:
    return lambda person: Silence(cluster, host, person, wait_until)


def jobs_so_far(cluster: Cluster) -> int:
    """Counted by the controller, which remembers nothing else of them."""
    found = re.search(r"NEXT_JOB_ID\s*=\s*(\d+)", cluster.run(["scontrol", "show", "config"]).stdout)
    assert found
    return int(found[1]) - 1


def vanish(cluster: Cluster, job: str) -> None:
    """A power cut where the job runs: nothing there says or writes another word."""
    node = cluster.admin.node_of(job)
    cluster.nodes[node].kill()
    leftovers.cut_power(cluster.layout)
    cluster.admin.node_down(node)


def test_without_a_trace_it_is_lost_after_the_debounce(
    cluster: Cluster, at_work: Callable[..., Person], silence: Callable[[Person], Silence]
) -> None:
    person = at_work()
    person.ask("start")
    count = jobs_so_far(cluster)
    with silence(person) as job:
        vanish(cluster, job)
    accounting = cluster.shape.accounting
    event = person.ended("NODE_FAILED" if accounting else "WORKER_LOST", LOST_S)
    assert event["phase"] == ("FAILED" if accounting else "LOST"), (event, person.ask("recorded"), person.story())
    assert jobs_so_far(cluster) == count


def test_without_a_trace_it_is_started_again_for_whoever_is_connected(
    cluster: Cluster, at_work: Callable[..., Person], silence: Callable[[Person], Silence], wait_until: Any
) -> None:
    person = at_work()
    person.start()
    person.ask("run", code="x = 41")
    count = jobs_so_far(cluster)
    with silence(person) as job:
        vanish(cluster, job)
    person.heard(lambda event: event["reason"] == "KERNEL_STATE_LOST", "that the memory is lost", LOST_S + A_WHILE_S)
    person.ask("connect")
    assert person.value("x") == "NameError"
    assert jobs_so_far(cluster) == count + 1
    person.ask("shut_down")
    wait_until(lambda: not cluster.admin.jobs(), "no job is left in the queue", A_WHILE_S)


def test_what_the_job_wrote_down_itself_is_believed(
    cluster: Cluster, at_work: Callable[..., Person], silence: Callable[[Person], Silence]
) -> None:
    """An administrator ended it: the worker said goodbye, and the script wrote how it ended."""
    person = at_work()
    person.ask("start")
    count = jobs_so_far(cluster)
    with silence(person) as job:
        cluster.admin.cancel(job)
    person.ended("ADMIN_CANCELLED", LOST_S)
    assert jobs_so_far(cluster) == count


def test_one_that_never_ran_and_was_forgotten_was_cancelled_from_outside(
    cluster: Cluster, at_work: Callable[..., Person], silence: Callable[[Person], Silence]
) -> None:
    person = at_work(ONE_NODE)
    cluster.admin.occupy("c1")
    start = person.begin("start")
    person.heard(lambda event: event["phase"] == "PENDING" and "machines" in event["sentence"], "why it waits")
    count = jobs_so_far(cluster)
    with silence(person) as job:
        cluster.admin.cancel(job)
    with pytest.raises(PersonError, match="stopped"):
        person.answer(start, LOST_S)
    person.ended("ADMIN_CANCELLED")
    assert jobs_so_far(cluster) == count


def test_a_shut_down_meanwhile_is_the_owner_s(
    cluster: Cluster, at_work: Callable[..., Person], silence: Callable[[Person], Silence]
) -> None:
    person = at_work()
    before = jobs_so_far(cluster)
    person.start()
    with silence(person):
        person.ask("shut_down")
    person.ended("USER_CANCELLED", LOST_S)
    assert jobs_so_far(cluster) == before + 1
