"""Ends by what really ends jobs: the sentence in the notebook says which it was."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from checks.parts.suite import FULL_LENGTH
from openai4s_backend_slurm.lab import Account
from tests.e2e.notebook import SECOND, Notebook

from .cluster_lab import ClusterLab

pytestmark = pytest.mark.timeout(240)
FULL = FULL_LENGTH in os.environ  # each end alone is also tested without a browser
WaitUntil = Callable[..., Any]


@pytest.fixture
def ready(lab: ClusterLab, notebook: Notebook, request: pytest.FixtureRequest) -> Notebook:
    """An open notebook whose kernel runs in a job of that profile."""
    lab.write_notebook("analysis.ipynb", request.param)
    notebook.load("analysis.ipynb")
    notebook.expect_ready(90)
    return notebook


def only_job(lab: ClusterLab) -> str:
    [job] = lab.jobs()
    return job["id"]


def its_owner_cancels_it(lab: ClusterLab, user: Any) -> None:
    done = lab.cluster.run(["scancel", only_job(lab)], Account.named(user.name))
    assert done.returncode == 0, done.stderr


def an_administrator_cancels_it(lab: ClusterLab, user: Any) -> None:
    lab.cluster.admin.cancel(only_job(lab))


def its_time_runs_out(lab: ClusterLab, user: Any) -> None:
    lab.cluster.admin.end_time(only_job(lab))


ENDS = [
    (its_owner_cancels_it, "stopped at its owner's request", "CANCELLED"),
    (its_time_runs_out, "reached its time limit", "TIMEOUT"),
]
if FULL:
    ENDS.append((an_administrator_cancels_it, "stopped from outside", "CANCELLED"))


@pytest.mark.parametrize("ready", ["cluster"], indirect=True)
@pytest.mark.parametrize(("end", "words", "state"), ENDS)
def test_a_job_that_ends_for_good_says_why(
    ready: Notebook,
    lab: ClusterLab,
    ordinary_user: Any,
    end: Callable[[ClusterLab, Any], None],
    words: str,
    state: str,
) -> None:
    job = only_job(lab)
    end(lab, ordinary_user)
    ready.expect_ended(words, 90)  # the scheduler looks at its clock every 30 s
    if end is not its_owner_cancels_it:  # who did it knows
        expect(ready.toast(words)).to_be_visible()
    expect(ready.show_panel().locator(".openai4s-Card").first).to_contain_text("What to do:")
    assert lab.cluster.admin.state(job) == state
    assert not lab.jobs()


def it_is_preempted(lab: ClusterLab) -> None:
    lab.cluster.admin.occupy(lab.cluster.admin.node_of(only_job(lab)))


def its_node_fails(lab: ClusterLab) -> None:
    node = lab.cluster.admin.node_of(only_job(lab))
    lab.cluster.nodes[node].kill()
    lab.cluster.admin.node_down(node)  # what is found out by itself after a time-out


LOSSES = [(it_is_preempted, "taken for a request with higher priority")]
if FULL:
    LOSSES.append((its_node_fails, "The machine that ran this kernel failed"))


@pytest.mark.parametrize("ready", ["spare"], indirect=True)
@pytest.mark.parametrize(("lose", "words"), LOSSES)
def test_a_job_whose_place_is_lost_is_followed_by_another_and_the_notebook_says_why(
    ready: Notebook,
    lab: ClusterLab,
    lose: Callable[[ClusterLab], None],
    words: str,
    picture: Callable[..., None],
) -> None:
    ready.run("x = 41")
    expect(ready.page.locator(".jp-InputArea-prompt").first).to_have_text("[1]:", timeout=30 * SECOND)
    first = only_job(lab)
    lose(lab)
    ready.close_dialog("Kernel Restarting")
    told = ready.toast("started afresh")
    expect(told).to_be_visible(timeout=90 * SECOND)
    expect(told).to_contain_text(words)
    ready.expect_ready(90)
    assert only_job(lab) != first
    ready.run("x + 1")
    expect(ready.outputs.last).to_contain_text("NameError", timeout=30 * SECOND)
    expect(ready.show_panel()).to_contain_text("its variables are gone")
    if lose is it_is_preempted:
        picture(ready.page, "preempted")


@pytest.mark.parametrize("ready", ["small"], indirect=True)
def test_a_kernel_that_wants_too_much_memory_says_so(ready: Notebook, lab: ClusterLab) -> None:
    job = only_job(lab)
    ready.run("held = bytearray(10**9)")
    ready.close_dialog("Kernel Restarting")
    told = ready.toast("started afresh")
    expect(told).to_be_visible(timeout=60 * SECOND)
    expect(told).to_contain_text("used more memory than its session may have")
    ready.expect_ready()
    assert only_job(lab) == job, "the kernel alone was ended"


@pytest.mark.parametrize("ready", ["small"], indirect=True)
def test_a_job_that_is_ended_for_want_of_memory_says_so(
    ready: Notebook, lab: ClusterLab, ordinary_user: Any, picture: Callable[..., None]
) -> None:
    before = lab.every_job()
    greedy = ordinary_user.home / "greedy"
    greedy.touch()
    try:
        lab.write_notebook("large-matrix.ipynb", "small")
        ready.load("large-matrix.ipynb")
        ready.expect_ended("used more memory than its profile allows")
    finally:
        greedy.unlink()
    ready.close_dialog("used more memory than its profile allows")
    ready.show_panel()
    picture(ready.page, "ended-memory-ran-out")
    [job] = lab.every_job() - before
    assert lab.cluster.admin.state(job) == "OUT_OF_MEMORY"
