"""What a session waits for on a real cluster is named by its real cause, and giving it up leaves no job."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from checks.parts.suite import FULL_LENGTH
from openai4s_backend_slurm.lab import network
from openai4s_backend_slurm.lab.configuration import LOGIN_ADDRESS
from tests.e2e import test_waiting as ways
from tests.e2e.notebook import SECOND, Notebook

from .cluster_lab import ClusterLab

pytestmark = pytest.mark.timeout(180)
FULL = FULL_LENGTH in os.environ
WaitUntil = Callable[..., Any]
PORT = f"{LOGIN_ADDRESS}:{network.SESSIONS_PORT}"


@pytest.fixture
def path() -> str:
    """A notebook of this test alone; the ways to give up look for "waits-"."""
    return f"waits-{secrets.token_hex(2)}.ipynb"


@pytest.fixture
def queued(lab: ClusterLab, notebook: Notebook, path: str, wait_until: WaitUntil) -> Notebook:
    """The first session holds the only machine that its profile names; the second one is open, and waits for it."""
    lab.write_notebook("first.ipynb", "cluster")
    lab.open_session("first.ipynb", "cluster")
    wait_until(lambda: [each["state"] for each in lab.alive()] == ["ready"], "the machine is taken", 60)
    lab.write_notebook(path, "cluster")
    notebook.load(path)
    notebook.expect_missing("allocation_granted")
    wait_until(lambda: [job["state"] for job in lab.jobs()].count("PENDING") == 1, "its job waits", 30)
    return notebook


def test_a_full_cluster_is_named_with_reason_and_estimate(
    queued: Notebook, lab: ClusterLab, picture: Callable[..., None]
) -> None:
    words = "queued: it is next, and waits for machines to become free, estimated"
    expect(queued.badge).to_contain_text(words, timeout=60 * SECOND)
    expect(queued.status_item).to_contain_text(words)
    card = queued.show_panel().locator('.openai4s-Card[data-state="starting"]')
    expect(card.locator('[data-progress="missing"]')).to_have_attribute("data-condition", "allocation_granted")
    expect(card).to_contain_text("Place in the queue: 1.")
    picture(queued.page, "waiting-cluster")


GIVE_UP = [ways.by_the_toast, ways.by_closing_the_notebook, ways.by_shutting_the_kernel_down]
if not FULL:
    GIVE_UP = GIVE_UP[:1]


@pytest.mark.parametrize("give_up", GIVE_UP)
def test_a_queued_session_that_is_given_up_leaves_no_job(
    queued: Notebook, lab: ClusterLab, path: str, give_up: Callable[[Notebook], None], wait_until: WaitUntil
) -> None:
    give_up(queued)
    wait_until(lambda: [job["state"] for job in lab.jobs()] == ["RUNNING"], "its job is gone from the queue", 20)
    wait_until(lambda: ways.sessions_of(queued, path)[0]["state"] == "ended", "the session is over", 20)
    [session] = ways.sessions_of(queued, path)
    assert session["reason"]["code"] == "USER_CANCELLED"
    assert session["granted_at"] is None
    wait_until(
        lambda: [each["path"] for each in lab.ask("GET", "api/sessions")] == ["first.ipynb"],
        "Jupyter holds no kernel for it any more",
        15,
    )


def test_a_server_that_stops_takes_what_is_queued_along(
    queued: Notebook, lab: ClusterLab, wait_until: WaitUntil
) -> None:
    before = lab.every_job()
    assert lab.stop() < 20, "the server waited for a queued kernel"
    wait_until(lambda: not lab.jobs(), "no job is left in the queue", 40)
    lab.start()
    wait_until(lambda: not lab.alive(), "every session is over", 40)
    assert not lab.every_job() - before, "something was submitted again"


def test_a_server_that_is_killed_and_comes_back_ends_what_is_queued_and_says_so(
    queued: Notebook, lab: ClusterLab, wait_until: WaitUntil
) -> None:
    panel, before = queued.show_panel(), lab.every_job()
    lab.stop(signal.SIGKILL)
    expect(panel.locator('[role="alert"]')).to_contain_text("The Jupyter server does not answer", timeout=40 * SECOND)
    expect(queued.badge).to_contain_text("The Jupyter server does not answer. Last known:")
    assert sorted(job["state"] for job in lab.jobs()) == ["PENDING", "RUNNING"], "nobody is there to end them"
    queued.closes_connection_error()
    lab.start()
    queued.expect_ended("The Jupyter server that owned this session went away", 90)
    wait_until(lambda: not lab.jobs(), "no job is left in the queue", 40)
    assert not lab.every_job() - before, "something was submitted again"
    queued.press(queued.toast("server that owned this session went away").filter(has_text="waits-"), "Start again")
    queued.expect_ready()
    assert not queued.our_errors


# -- a firewall ------------------------------------------------------------------------------------------------------

VERDICTS = {"drop": "no answer to the connection within 10 s; a firewall may drop it", "reject": "Connection refused"}


@pytest.fixture
def kept_away(lab: ClusterLab, notebook: Notebook, request: pytest.FixtureRequest) -> Notebook:
    """A session whose worker runs on its machine, and does not get through to the server."""
    network.close_sessions_port(lab.cluster.layout, request.param)
    lab.write_notebook("worker.ipynb", "cluster")
    notebook.load("worker.ipynb")
    notebook.expect_missing("worker_registered", 60)
    expect(notebook.badge).to_contain_text("1 of 4 conditions: waiting for the worker, 0 of 1 connected")
    words = f"it cannot reach this server at {PORT}: {VERDICTS[request.param]}"
    expect(notebook.badge).to_contain_text(words, timeout=40 * SECOND)
    return notebook


@pytest.mark.parametrize("kept_away", VERDICTS if FULL else ["reject"], indirect=True)
def test_a_worker_behind_a_firewall_is_named_with_host_port_and_cause(
    kept_away: Notebook, lab: ClusterLab, picture: Callable[..., None], wait_until: WaitUntil
) -> None:
    ladder = kept_away.show_panel().locator(".openai4s-Ladder li")
    expect(ladder.nth(0)).to_have_attribute("data-progress", "met")
    expect(ladder.nth(1)).to_have_attribute("data-progress", "missing")
    picture(kept_away.page, "waiting-worker")
    kept_away.press(kept_away.toast("worker.ipynb"), "Cancel")
    kept_away.expect_ended("stopped at its owner's request")
    wait_until(lambda: not lab.jobs(), "its job is gone", 40)
    wait_until(lambda: not lab.cluster.job_processes(), "no process of a job is left", 40)


@pytest.mark.parametrize("kept_away", ["drop"], indirect=True)
def test_a_firewall_that_opens_lets_the_session_go_on_by_itself(kept_away: Notebook, lab: ClusterLab) -> None:
    before = lab.every_job()
    network.open_sessions_port(lab.cluster.layout)
    kept_away.expect_ready(60)
    kept_away.run("6*7")
    expect(kept_away.outputs.last).to_have_text("42", timeout=30 * SECOND)
    assert not lab.every_job() - before
    assert not kept_away.our_errors
