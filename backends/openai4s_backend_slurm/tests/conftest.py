"""Real clusters for this backend's tests: one without accounting, one with, each started when a test first asks.

Each test finds every daemon awake, every node idle and no job in the queue. Jobs are submitted by `ordinary_user`.
Tests that a machine cannot run, because a package or root is missing, are skipped and say so.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openai4s_backend_slurm.lab import Account, Cluster, Shape, missing_packages
from openai4s_provisioner.orchestration.models import ResourceProfile
from openai4s_provisioner.testing.backend_lab import BackendLab

from .clocks import CLOCKS, FULL
from .people import Person
from .session_jobs import ANYWHERE

VARIANTS = ["without accounting", "with accounting"]
NewPerson = Callable[..., Person]
collect_ignore = ["browser"]  # named itself, it is collected: in a process of its own


@contextlib.contextmanager
def started(shape: Shape, *users: str) -> Iterator[Cluster]:
    """A cluster in a folder of its own; `users` may submit to it."""
    if missing := missing_packages(accounting=shape.accounting, network=shape.network):
        pytest.skip(f"real clusters need these packages: {' '.join(missing)}")
    # Not below the TMPDIR of the test that happens to be first: other accounts cannot look into that.
    with Cluster(Path(tempfile.mkdtemp(prefix="o4s-lab-", dir="/tmp")), shape) as cluster:
        if shape.accounting:
            cluster.admin.admit(*users)
        yield cluster


def one_user() -> Account | None:
    """Without root, everything runs as whoever runs the tests."""
    return None if os.geteuid() == 0 else Account.current()


@pytest.fixture(scope="session")
def _plain_cluster(run_mark: str) -> Iterator[Cluster]:
    with started(Shape(one_user=one_user())) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _accounting_cluster(run_mark: str, ordinary_user: object) -> Iterator[Cluster]:
    with started(Shape(accounting=True, one_user=one_user()), getattr(ordinary_user, "name", "")) as cluster:
        yield cluster


@pytest.fixture
def cluster(_plain_cluster: Cluster) -> Iterator[Cluster]:
    """Four idle nodes, no accounting at all."""
    _plain_cluster.restore()
    yield _plain_cluster
    _plain_cluster.restore()


@pytest.fixture
def accounting_cluster(_accounting_cluster: Cluster) -> Iterator[Cluster]:
    """Four idle nodes, with slurmdbd and its database."""
    _accounting_cluster.restore()
    yield _accounting_cluster
    _accounting_cluster.restore()


@pytest.fixture(params=VARIANTS)
def either_cluster(request: pytest.FixtureRequest) -> Cluster:
    """Runs the test twice."""
    return _variant(request)


@pytest.fixture(params=VARIANTS if FULL else VARIANTS[:1])
def some_cluster(request: pytest.FixtureRequest) -> Cluster:
    """For what accounting has no part in: at full length with it all the same."""
    return _variant(request)


def _variant(request: pytest.FixtureRequest) -> Cluster:
    found: Cluster = request.getfixturevalue("cluster" if request.param == VARIANTS[0] else "accounting_cluster")
    return found


@pytest.fixture
def new_person(ordinary_user: Any) -> Iterator[NewPerson]:
    """`new_person(cluster, profile, backend)`: a person at work; all of them go home at the end."""
    with contextlib.ExitStack() as home:

        def arrive(cluster: Cluster, profile: str = ANYWHERE, backend: str = "", **clocks: Any) -> Person:
            person = home.enter_context(Person(ordinary_user, cluster, profile, backend, **{**CLOCKS, **clocks}))
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


@pytest.fixture
def backend_lab(cluster: Cluster, tmp_path: Path) -> Iterator[BackendLab]:
    """For the contract of every backend."""
    lab = BackendLab(
        factory="openai4s_backend_slurm:create_backend",
        state_dir=tmp_path / "state",
        exchange_dir=tmp_path / "exchange",
        profile=ResourceProfile("one", "slurm", memory_mb=100, backend_options={"partition": "cpu"}),
        refused_profile=ResourceProfile("odd", "slurm", backend_options={"colour": "blue"}),
        options={"min_interval_s": 0.05, "slurm_conf": str(cluster.layout.conf)},
        absent_handle="4000000000/no-such-token",
        patience_s=40.0,
    )
    yield lab
    lab.end_everything()
