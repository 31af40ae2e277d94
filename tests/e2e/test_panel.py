"""The panel: commands beside sessions, logs, and the sentences of an empty and of an unreachable server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Locator, Route, expect

from checks.parts.place import REPOSITORY

from .notebook import SECOND, Notebook

WaitUntil = Callable[..., Any]
EMPTY: dict[str, Any] = {
    "sessions": [],
    "starts": [],
    "batches": [],
    "as_of": "2026-01-01T00:00:00.000Z",
    "offline": None,
}


def test_an_empty_panel_says_what_to_do(open_lab: Notebook) -> None:
    open_lab.load()
    open_lab.page.route("**/openai4s/sessions*", lambda route: route.fulfill(json=EMPTY))
    panel = open_lab.show_panel()
    expect(panel).to_contain_text("No session", timeout=20 * SECOND)
    panel.get_by_role("button", name="New cluster notebook").click()
    expect(open_lab.page.locator(".openai4s-Form")).to_be_visible()


def submit(open_lab: Notebook, program: str) -> None:
    lab = open_lab.lab
    words = [sys.executable, "-m", "openai4s_provisioner.jupyter.cli", "submit", "--profile", "default", "--"]
    words += ["sh", "-c", program]
    subprocess.run(words, check=True, env=lab.environment, cwd=lab.place.work, stdout=subprocess.DEVNULL, timeout=60)


def opened_log(open_lab: Notebook, words: str) -> tuple[Locator, Locator]:
    """The card of a command that runs, and its log."""
    card = open_lab.show_panel().locator('.openai4s-Card[data-state="ready"]').filter(has_text=words)
    expect(card).to_be_visible(timeout=60 * SECOND)
    card.locator('[data-action="log"]').click()
    return card, open_lab.page.locator(".openai4s-Log pre")


def test_a_command_stands_beside_the_sessions_with_its_log_and_can_be_stopped(
    open_lab: Notebook, picture: Callable[..., None]
) -> None:
    go_on = open_lab.lab.place.work / "go-on"
    submit(open_lab, "echo step one is done; until [ -e go-on ]; do sleep 0.1; done; echo step two; sleep 600")
    open_lab.load()
    card, log = opened_log(open_lab, "step one")
    expect(log).to_contain_text("step one is done", timeout=20 * SECOND)
    state, pause = open_lab.page.locator(".openai4s-Log-state"), open_lab.page.get_by_role("button", name="Pause")
    pause.click()
    expect(state).to_have_attribute("data-state", "paused")
    go_on.touch()
    open_lab.page.get_by_role("button", name="Follow").click()
    expect(log).to_contain_text("step two", timeout=20 * SECOND)
    picture(open_lab.page, "command")
    card.locator('[data-action="stop"]').click()
    open_lab.page.locator(".jp-Dialog .jp-mod-warn").click()
    expect(log.locator(".openai4s-Log-end")).to_contain_text("stopped at its owner's request", timeout=60 * SECOND)
    ended = open_lab.page.locator('.openai4s-Card[data-state="ended"]').filter(has_text="step one")
    expect(ended.first).to_be_visible(timeout=60 * SECOND)
    expect(open_lab.page.locator("#jp-running-sessions .openai4s-Running")).to_have_count(0)
    go_on.unlink()


def test_a_log_misses_no_line_and_has_none_twice_while_the_server_is_away(
    open_lab: Notebook,
) -> None:
    page, lab = open_lab.page, open_lab.lab
    stop = lab.place.work / "stop-counting"
    submit(open_lab, "n=0; until [ -e stop-counting ]; do n=$((n+1)); echo line $n; sleep 0.2; done; echo the last")
    open_lab.load()
    _, log = opened_log(open_lab, "stop-counting")
    state = page.locator(".openai4s-Log-state")
    expect(log).to_contain_text("line 5\n", timeout=20 * SECOND)
    lab.stop()
    expect(state).to_have_attribute("data-state", "interrupted", timeout=20 * SECOND)
    lab.start()
    expect(state).to_have_attribute("data-state", "following", timeout=70 * SECOND)  # it is asked ever more seldom
    stop.touch()
    expect(log).to_contain_text("the last", timeout=30 * SECOND)
    told = [line for line in log.inner_text().splitlines() if line.startswith("line ")]
    assert told == [f"line {number + 1}" for number in range(len(told))]
    stop.unlink()


def test_who_has_scrolled_up_in_a_log_stays_there(open_lab: Notebook) -> None:
    page = open_lab.page
    more = open_lab.lab.place.work / "more"
    submit(open_lab, "seq 1 1900; until [ -e more ]; do sleep 0.1; done; seq 1901 2400; sleep 600")
    open_lab.load()
    _, log = opened_log(open_lab, "seq 1901")
    expect(log).to_contain_text("1900\n", timeout=20 * SECOND)
    bottom = "e => e.scrollHeight - e.scrollTop - e.clientHeight < 2"
    assert log.evaluate(bottom), "the newest lines are in view"
    line_on_top = """e => {
        const top = e.getBoundingClientRect().top;
        return [...e.children].find(each => each.getBoundingClientRect().top >= top).textContent;
    }"""
    log.evaluate("e => { e.scrollTop = e.scrollHeight / 2; }")
    newest = page.get_by_role("button", name="Newest lines")
    expect(newest).to_be_visible()
    before = log.evaluate(line_on_top)
    more.touch()
    expect(log).to_contain_text("2400\n", timeout=20 * SECOND)
    assert log.evaluate(line_on_top) == before
    assert log.evaluate("e => e.querySelectorAll('span').length") == 2000, "a bounded number is kept"
    newest.click()
    assert log.evaluate(bottom)
    expect(newest).to_be_hidden()
    more.unlink()


def test_a_start_that_is_refused_says_so_in_the_badge_and_in_the_panel(open_lab: Notebook) -> None:
    open_lab.lab.write_notebook("closed.ipynb", "closed")
    open_lab.closes_failed_start()
    open_lab.load("closed.ipynb")
    open_lab.expect_ended("names the backend 'elsewhere'")
    card = open_lab.show_panel().locator('.openai4s-Card[data-state="failed"]').filter(has_text="closed.ipynb")
    expect(card.locator(".openai4s-Card-state")).to_have_text("Refused")
    expect(card).to_contain_text("Install it, or choose another profile.")
    expect(card.locator("[data-action]")).to_have_text(["Try again"])
    with open_lab.page.expect_request(lambda asked: "api/sessions" in asked.url and asked.method in ("POST", "PATCH")):
        card.locator("[data-action]").click()
    expect(card).to_have_count(1, timeout=20 * SECOND)
    expect(card).to_contain_text("names the backend 'elsewhere'")


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
    assert not open_lab.our_errors


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
