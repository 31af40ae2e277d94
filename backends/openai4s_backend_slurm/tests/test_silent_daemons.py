"""Daemons that are stopped or hang, real ones: before, while and after something is asked of them.

Sessions go on, one line says so; nothing is sent twice, and nothing is forgotten.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster

from .clocks import A_WHILE_S
from .conftest import NewPerson
from .people import Person
from .session_jobs import ANYWHERE, jobs, nothing_left, only_job, only_running, used

pytestmark = pytest.mark.timeout(600)

DAEMONS = ["controller stopped", "controller hung", "munged stopped"]


@contextlib.contextmanager
def unreachable(cluster: Cluster, how: str) -> Iterator[None]:
    name, _, what = how.partition(" ")
    daemon = cluster.munge if name == "munged" else cluster.controller
    with daemon.hung() if what == "hung" else daemon.stopped():
        yield
    cluster.wait(cluster.answers, "the controller to answer again")


@pytest.mark.parametrize("how", DAEMONS)
def test_a_running_session_does_not_notice(
    some_cluster: Cluster, new_person: NewPerson, wait_until: Any, how: str
) -> None:
    person = new_person(some_cluster)
    job = used(person, some_cluster)
    with unreachable(some_cluster, how):
        wait_until(lambda: person.complaints(), "one line in the log says that nobody answers", A_WHILE_S)
        assert person.value("x") == "41"
    assert person.value("x") == "41"
    assert only_running(some_cluster) == job
    person.ask("shut_down")
    person.ended("USER_CANCELLED")
    nothing_left(some_cluster, wait_until)
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
    one_session(person, cluster, start, wait_until)


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


def one_session(person: Person, cluster: Cluster, start: int, wait_until: Any) -> None:
    """It starts in the end, in the only job that there ever was."""
    person.answer(start, 3 * A_WHILE_S)
    person.ask("connect")
    assert person.value("6 * 7") == "42"
    assert only_running(cluster) == only_job(cluster)
    person.ask("shut_down")
    nothing_left(cluster, wait_until)


# -- in the middle of a submission -------------------------------------------------------------------------------------

HELD = """#!/bin/sh
touch {mark}.asked
while [ -e {mark}.hold ]; do sleep 0.05; done
exec sbatch "$@"
"""


class Wrapper:
    """A submission command that can be held up just before it reaches the controller."""

    def __init__(self, home: Path) -> None:
        command = home / "held-sbatch"
        command.write_text(HELD.format(mark=command))
        command.chmod(0o755)
        self.setting = f'commands = {{ sbatch = "{command}" }}'
        self._hold, self._asked = Path(f"{command}.hold"), Path(f"{command}.asked")

    def hold(self) -> None:
        self._asked.unlink(missing_ok=True)
        self._hold.touch()

    def is_held(self) -> bool:
        return self._asked.exists()

    def let_go(self) -> None:
        self._hold.unlink()


@pytest.mark.parametrize("how", DAEMONS)
def test_silence_while_a_job_is_handed_in(
    some_cluster: Cluster, new_person: NewPerson, ordinary_user: Any, wait_until: Any, how: str
) -> None:
    """It is on its way when they fall silent. From one that hangs the answer is lost, and the job lands later."""
    cluster, wrapper = some_cluster, Wrapper(ordinary_user.home)
    person = new_person(cluster, ANYWHERE, wrapper.setting)
    wrapper.hold()
    start = person.begin("start")
    wait_until(wrapper.is_held, "the job to be on its way", A_WHILE_S)
    with unreachable(cluster, how):
        wrapper.let_go()
        person.heard(lambda event: "not known yet" in event["sentence"], "that the outcome is open", A_WHILE_S)
    one_session(person, cluster, start, wait_until)
