"""The panel: commands beside sessions, logs, and the sentences of an empty and of an unreachable server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Route, expect

from checks.parts.place import REPOSITORY

from .notebook import SECOND, Notebook

WaitUntil = Callable[..., Any]
EMPTY: dict[str, Any] = {"sessions": [], "batches": [], "as_of": "2026-01-01T00:00:00.000Z", "offline": None}


def test_an_empty_panel_says_what_to_do(open_lab: Notebook) -> None:
    open_lab.load()
    open_lab.page.route("**/openai4s/sessions*", lambda route: route.fulfill(json=EMPTY))
    panel = open_lab.show_panel()
    expect(panel).to_contain_text("No session", timeout=20 * SECOND)
    panel.get_by_role("button", name="New cluster notebook").click()
    expect(open_lab.page.locator(".openai4s-Form")).to_be_visible()


def test_a_command_stands_beside_the_sessions_with_its_log_and_can_be_stopped(
    open_lab: Notebook, picture: Callable[..., None], wait_until: WaitUntil
) -> None:
    lab = open_lab.lab
    words = [sys.executable, "-m", "openai4s_provisioner.jupyter.cli", "submit", "--profile", "default", "--"]
    words += ["sh", "-c", "echo step one is done; sleep 600"]
    subprocess.run(words, check=True, env=lab.environment, cwd=lab.place.work, stdout=subprocess.DEVNULL, timeout=60)
    open_lab.load()
    card = open_lab.show_panel().locator('.openai4s-Card[data-state="ready"]').filter(has_text="step one")
    expect(card).to_be_visible(timeout=60 * SECOND)
    card.locator('[data-action="log"]').click()
    log = open_lab.page.locator(".openai4s-Log pre")
    read_again = open_lab.page.get_by_role("button", name="Read again")

    def is_read() -> bool:
        read_again.click()
        return "step one is done" in log.inner_text()

    wait_until(is_read, "its output is in the log", 20)
    picture(open_lab.page, "command")
    card.locator('[data-action="stop"]').click()
    open_lab.page.locator(".jp-Dialog .jp-mod-warn").click()
    ended = open_lab.page.locator('.openai4s-Card[data-state="ended"]').filter(has_text="step one")
    expect(ended.first).to_be_visible(timeout=60 * SECOND)
    expect(open_lab.page.locator("#jp-running-sessions .openai4s-Running")).to_have_count(0)


def test_a_session_is_stopped_from_the_running_panel(open_lab: Notebook, wait_until: Callable[..., Any]) -> None:
    open_lab.lab.write_notebook("running.ipynb", "default")
    open_lab.load("running.ipynb")
    open_lab.expect_ready()
    page = open_lab.page
    page.get_by_role("tab", name="Running Terminals and Kernels").click()
    section = page.get_by_role("region", name="Cluster sessions Section")
    item = section.get_by_role("treeitem", name="running.ipynb Ready")
    expect(item).to_be_visible()
    item.hover()
    item.locator(".jp-RunningSessions-itemShutdown").click()
    wait_until(lambda: not open_lab.lab.alive(), "the session has ended", 40)
    expect(item).to_have_count(0, timeout=20 * SECOND)


def test_answers_that_are_no_answers_leave_a_sentence_and_no_blank_panel(open_lab: Notebook) -> None:
    answers: list[Callable[[Route], None]] = [
        lambda route: route.fulfill(status=502, content_type="text/html", body="<h1>Bad gateway</h1>"),
        lambda route: route.fulfill(status=200, content_type="application/json", body="{"),
        lambda route: route.abort(),
    ]
    for answer in answers:
        open_lab.page.unroute_all()
        open_lab.page.route("**/openai4s/sessions*", answer)
        open_lab.load()
        expect(open_lab.show_panel()).to_contain_text("The Jupyter server does not answer", timeout=20 * SECOND)
    open_lab.page.unroute_all()
    open_lab.page.get_by_role("button", name="Ask now").click()
    expect(open_lab.show_panel()).not_to_contain_text("does not answer", timeout=20 * SECOND)
    ours = [each for each in open_lab.errors if "openai4s-provisioner" in each and "/openai4s/sessions" not in each]
    assert not ours


def test_a_server_without_our_endpoints_is_named(open_lab: Notebook) -> None:
    open_lab.page.route("**/openai4s/sessions*", lambda route: route.fulfill(status=404, body="not here"))
    open_lab.load()
    expect(open_lab.show_panel()).to_contain_text("This server cannot start sessions", timeout=20 * SECOND)


def test_the_wheel_brings_the_labextension_along(tmp_path: Any) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL, timeout=120)
    [wheel] = tmp_path.glob("*.whl")
    listed = subprocess.run([sys.executable, "-m", "zipfile", "-l", wheel], capture_output=True, text=True, check=True)
    below = "data/share/jupyter/labextensions/openai4s-provisioner/"
    for name in ("package.json", "install.json", "static/remoteEntry.", "schemas/openai4s-provisioner/plugin.json"):
        assert below + name in listed.stdout
    assert "data/etc/jupyter/jupyter_server_config.d/openai4s_provisioner.json" in listed.stdout
    assert "node_modules" not in listed.stdout
