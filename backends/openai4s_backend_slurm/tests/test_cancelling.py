"""Sessions whose job is cancelled: by its owner or an administrator, while it waits and while it runs, or given up.

On real daemons, with and without accounting. Accounting alone remembers whose hand it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster

from .clocks import A_WHILE_S, ONE_POLL_S
from .conftest import NewPerson
from .people import Person, PersonError
from .session_jobs import ACCOUNTING_LAGS_S, ANYWHERE, ONE_NODE, ended, jobs, only_job

pytestmark = pytest.mark.timeout(600)

HANDS = ["owner", "administrator"]
Cancels = Callable[[Cluster, str], str]


@pytest.fixture
def cancels(user_runs: Callable[..., str]) -> Cancels:
    """`cancels(cluster, who)`: that hand ends the session's one job; the reason that can then be known."""

    def cancel(cluster: Cluster, who: str) -> str:
        if who == "owner":
            user_runs(cluster, "scancel", only_job(cluster))
        else:
            cluster.admin.cancel(only_job(cluster))
        remembers = cluster.accounting is not None and cluster.accounting.is_running
        return "USER_CANCELLED" if who == "owner" and remembers else "ADMIN_CANCELLED"

    return cancel


def waiting(person: Person, cluster: Cluster) -> int:
    """The number of the order to start, while it waits in the queue and the person knows why."""
    cluster.admin.occupy("c1")
    start = person.begin("start")
    person.heard(lambda event: event["phase"] == "PENDING" and "machines" in event["sentence"], "why it waits")
    return start


def left_the_queue(cluster: Cluster, wait_until: Any) -> None:
    """Its one job, behind somebody else's that goes on."""
    assert len(jobs(cluster)) == 1
    wait_until(lambda: not jobs(cluster, are_over=False), "no job is left in the queue", A_WHILE_S)


def soon(cluster: Cluster) -> float:
    return ONE_POLL_S + (ACCOUNTING_LAGS_S if cluster.shape.accounting else 0.0)


@pytest.mark.parametrize("who", HANDS)
def test_cancelled_while_it_runs(
    either_cluster: Cluster, new_person: NewPerson, cancels: Cancels, wait_until: Any, who: str
) -> None:
    person = new_person(either_cluster)
    person.start()
    reason = cancels(either_cluster, who)
    ended(person, either_cluster, reason, wait_until, soon(either_cluster))


def test_cancelled_while_its_kernel_starts(
    some_cluster: Cluster, new_person: NewPerson, cancels: Cancels, wait_until: Any, ordinary_user: Any
) -> None:
    """The signal reaches worker and kernel at once; that the kernel died of it is not what happened."""
    slow = ordinary_user.home / "slow"
    slow.mkdir(exist_ok=True)
    (slow / "sitecustomize.py").write_text("import signal\nsignal.pause()\n")
    person = new_person(
        some_cluster, f'{ANYWHERE}\nshare_read_only = ["{slow}"]\nprologue = "export PYTHONPATH={slow}"'
    )
    start = person.begin("start")
    person.heard(lambda event: "3 of 4" in event["sentence"], "only the kernel's answer is missing")
    reason = cancels(some_cluster, "administrator")
    with pytest.raises(PersonError, match="stopped"):
        person.answer(start)
    ended(person, some_cluster, reason, wait_until, soon(some_cluster))


@pytest.mark.parametrize("who", HANDS)
def test_cancelled_while_it_waits(
    either_cluster: Cluster, new_person: NewPerson, cancels: Cancels, wait_until: Any, who: str
) -> None:
    person = new_person(either_cluster, ONE_NODE)
    start = waiting(person, either_cluster)
    reason = cancels(either_cluster, who)
    with pytest.raises(PersonError, match="stopped"):
        person.answer(start)
    person.ended(reason, soon(either_cluster))
    left_the_queue(either_cluster, wait_until)


def test_given_up_while_it_waits(either_cluster: Cluster, new_person: NewPerson, wait_until: Any) -> None:
    person = new_person(either_cluster, ONE_NODE)
    start = waiting(person, either_cluster)
    person.ask("give_up")
    with pytest.raises(PersonError, match="given up"):
        person.answer(start)
    person.ended("USER_CANCELLED", A_WHILE_S)
    left_the_queue(either_cluster, wait_until)


def test_cancelled_while_accounting_is_away(
    accounting_cluster: Cluster, new_person: NewPerson, cancels: Cancels, wait_until: Any
) -> None:
    """Nobody waits for a witness that does not answer."""
    person = new_person(accounting_cluster)
    person.start()
    assert accounting_cluster.accounting is not None
    with accounting_cluster.accounting.stopped():
        reason = cancels(accounting_cluster, "owner")
        ended(person, accounting_cluster, reason, wait_until, soon(accounting_cluster))
