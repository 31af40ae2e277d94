"""A browser, and one JupyterLab on a cluster that has everything: firewalls, limited memory, accounting.

Run this folder in a process of its own, as the core's tests in a browser.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from openai4s_backend_slurm.lab import Cluster, Shape, network
from tests.e2e.conftest import browser_context_args, browser_type_launch_args, picture
from tests.e2e.notebook import Notebook

from ..conftest import started
from ..homes import Home
from .cluster_lab import ClusterLab

__all__ = ["browser_context_args", "browser_type_launch_args", "picture"]

PROFILES = """
display_name = "cluster, one machine"
partition = "cpu"
nodelist = "{prefix}c1"
exclusive = true
walltime_s = 3600
[profiles.spare]
backend = "slurm"
display_name = "cluster, spare time"
partition = "scavenge"
memory_mb = 400
walltime_s = 3600
[profiles.small]
backend = "slurm"
display_name = "cluster, small"
partition = "all"
memory_mb = 400
walltime_s = 3600
prologue = "if [ -e {greedy} ]; then python3 -c 'held = bytearray(10**9)' || exit 1; fi"
"""


@pytest.fixture(scope="session")
def site(run_mark: str, ordinary_user: Any) -> Iterator[Cluster]:
    if os.geteuid() != 0 or not Path("/sys/fs/cgroup/memory").is_dir():
        pytest.skip("firewalled nodes and limited memory need root, and control groups of version 1")
    with started(Shape(accounting=True, cgroups=True, network=True), ordinary_user.name) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster_lab(site: Cluster, ordinary_user: Any) -> Iterator[ClusterLab]:
    profiles = PROFILES.format(prefix=site.layout.prefix, greedy=ordinary_user.home / "greedy")
    port = str(network.SESSIONS_PORT)
    with (
        Home(ordinary_user, site, profiles, ports=port, memory="") as home,
        ClusterLab(home, ordinary_user, site) as lab,
    ):
        lab.install_kernels(("cluster", "spare", "small"))
        lab.start()
        yield lab


@pytest.fixture
def lab(cluster_lab: ClusterLab, wait_until: Callable[..., Any]) -> Iterator[ClusterLab]:
    """An empty cluster, and nothing of the person's; the same afterwards."""
    yield cluster_lab
    if not cluster_lab.is_running:
        cluster_lab.start()
    network.open_sessions_port(cluster_lab.cluster.layout)
    cluster_lab.shut_everything_down()
    wait_until(lambda: not cluster_lab.alive(), "every session has ended", 40)
    cluster_lab.cluster.restore()
    # A step's daemon clears away its control groups after its job is over, and a job that begins meanwhile may fail.
    wait_until(lambda: not cluster_lab.step_daemons(), "no step is being cleared away", 20)


@pytest.fixture
def notebook(lab: ClusterLab, page: Page) -> Iterator[Notebook]:
    """A page, nothing loaded yet."""
    yield Notebook(page, lab)
    page.goto("about:blank")
