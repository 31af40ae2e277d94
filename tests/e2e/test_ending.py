"""However a session ends, the notebook says which way it was, what to do now, and "Start again" works."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from datetime import datetime
from typing import Any

import psutil
import pytest
from playwright.sync_api import APIResponse, Route, expect

from checks.parts.leftovers import processes_of
from openai4s_provisioner.orchestration.reasons import Reason

from .notebook import SECOND, Notebook

WaitUntil = Callable[..., Any]


def ready(page: Notebook, path: str, profile: str = "default") -> None:
    page.lab.write_notebook(path, profile)
    page.load(path)
    page.expect_ready()


def leader(page: Notebook) -> psutil.Process:
    """The allocation's leading process, which an administrator would end."""
    [found] = [each for each in processes_of(str(page.lab.place.root)) if "shim" in " ".join(each.cmdline())]
    return found


def somebody_ended_it(page: Notebook) -> None:
    leader(page).send_signal(signal.SIGTERM)


def time_ran_out(page: Notebook) -> None:
    """Its profile allows a few seconds only."""


ENDS = [
    pytest.param(somebody_ended_it, "default", "stopped from outside", id="ended from outside"),
    pytest.param(time_ran_out, "short", "reached its time limit", id="time limit"),
]


@pytest.mark.parametrize(("end", "profile", "words"), ENDS)
def test_a_session_that_ends_for_good_says_why(
    open_lab: Notebook, end: Callable[[Notebook], None], profile: str, words: str, picture: Callable[..., None]
) -> None:
    ready(open_lab, f"{end.__name__}.ipynb", profile)
    end(open_lab)
    open_lab.expect_ended(words)
    toast = open_lab.toast(words)
    expect(toast).to_be_visible()
    card = open_lab.show_panel().locator(".openai4s-Card").first
    expect(card).to_contain_text(words)
    expect(card).to_contain_text("What to do:")
    picture(open_lab.page, f"ended-{end.__name__.replace('_', '-')}")


def test_a_session_whose_place_is_lost_comes_back_and_says_that_its_memory_is_gone(
    open_lab: Notebook, picture: Callable[..., None]
) -> None:
    reason = "NODE_FAILED"  # which one machine alone does not have; by real causes in backends' own tests
    ready(open_lab, "lost.ipynb")
    open_lab.run("x = 41")
    open_lab.lab.end_what_runs(reason)
    open_lab.close_dialog("Kernel Restarting")
    told = open_lab.toast("started afresh")
    expect(told).to_be_visible(timeout=60 * SECOND)
    expect(told).to_contain_text(Reason(reason).what_happened)
    open_lab.expect_ready(90)
    open_lab.run("x + 1")
    expect(open_lab.outputs.last).to_contain_text("NameError", timeout=30 * SECOND)
    expect(open_lab.show_panel()).to_contain_text("its variables are gone")
    picture(open_lab.page, "memory-lost")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        pytest.param("exit()", "exit code 0", id="exit"),
        pytest.param("import os; os._exit(3)", "exit code 3", id="an exit without goodbye"),
    ],
)
def test_a_kernel_that_exits_says_that_its_memory_is_gone(open_lab: Notebook, code: str, words: str) -> None:
    ready(open_lab, "exit.ipynb")
    open_lab.run(code)
    open_lab.close_dialog("Kernel Restarting")
    told = open_lab.toast("started afresh")
    expect(told).to_be_visible(timeout=60 * SECOND)
    expect(told).to_contain_text(words)
    open_lab.expect_ready()


def test_a_session_whose_time_runs_out_is_warned_of_and_can_be_extended(
    open_lab: Notebook, picture: Callable[..., None], wait_until: WaitUntil
) -> None:
    ready(open_lab, "brief.ipynb", "brief")
    warning = open_lab.toast("machine's time ends")
    expect(warning).to_be_visible(timeout=30 * SECOND)
    picture(open_lab.page, "walltime-warning")
    [before] = open_lab.lab.alive()
    open_lab.press(warning, "Extend…")
    dialog = open_lab.page.locator(".jp-Dialog")
    expect(dialog.get_by_role("radio")).to_have_count(3)
    expect(dialog.get_by_role("radio", name="1 h 59 min, until")).to_be_visible()
    expect(dialog).to_contain_text("the most that its profile allows")
    expect(dialog.get_by_role("radio", name="1 h, until")).to_be_focused()
    picture(open_lab.page, "extend")
    open_lab.page.keyboard.press("ArrowUp")
    open_lab.page.keyboard.press("Enter")

    def later_s() -> float:
        [now] = open_lab.lab.alive()
        ends = [datetime.fromisoformat(each["walltime_ends_at"]) for each in (before, now)]
        return (ends[1] - ends[0]).total_seconds()

    wait_until(lambda: later_s() > 0, "the session is extended", 10)
    assert abs(later_s() - 900) < 60, "by what was chosen with the keyboard: a quarter of an hour"
    expect(warning).to_have_count(0, timeout=20 * SECOND)


def test_keep_keeps_an_idle_session_and_without_it_it_is_released_and_can_be_started_again(
    open_lab: Notebook, picture: Callable[..., None], wait_until: WaitUntil
) -> None:
    ready(open_lab, "idle.ipynb", "hasty")
    warning = open_lab.toast("is idle and will be released")
    expect(warning).to_be_visible(timeout=30 * SECOND)
    before = open_lab.snapshot()[0]["lease_ends_at"]
    picture(open_lab.page, "lease-warning")
    open_lab.press(warning, "Keep")
    wait_until(lambda: open_lab.lab.alive()[0]["lease_ends_at"] > before, "the session is kept", 10)
    expect(warning).to_have_count(0, timeout=10 * SECOND)
    open_lab.run("6*7")
    expect(open_lab.outputs.last).to_have_text("42", timeout=30 * SECOND)

    open_lab.expect_ended("idle for longer than its profile allows")
    released = open_lab.toast("idle for longer")
    expect(released).to_be_visible()
    picture(open_lab.page, "released")
    open_lab.press(released, "Start again")
    open_lab.expect_ready()
    open_lab.run("20+3")
    expect(open_lab.outputs.last).to_have_text("23", timeout=30 * SECOND)


class OldAnswers:
    """JupyterLab's list of sessions as the server had it a while ago: it arrives when a test says so."""

    def __init__(self, page: Notebook) -> None:
        self._held: list[tuple[Route, APIResponse]] = []
        self._holds = True
        self._page = page
        page.page.route("**/api/sessions?*", self._hold)
        page.page.evaluate("() => void window.jupyterapp.serviceManager.sessions.refreshRunning()")

    @property
    def count(self) -> int:
        self._page.page.wait_for_timeout(20)  # routes are served meanwhile
        return len(self._held)

    def hold_no_more(self) -> None:
        self._holds = False

    def arrive(self) -> None:
        for route, answer in self._held:
            route.fulfill(response=answer)

    def _hold(self, route: Route) -> None:
        if self._holds:
            self._held.append((route, route.fetch()))
        else:
            route.fallback()


SLOWER = 6  # times, which is what a page has of a busy machine


@pytest.mark.parametrize("is_known", [False, True], ids=["before JupyterLab knows", "after JupyterLab knows"])
def test_start_again_leads_to_the_new_kernel_though_older_answers_arrive_later(
    open_lab: Notebook, is_known: bool, wait_until: WaitUntil
) -> None:
    ready(open_lab, "again.ipynb")
    page = open_lab.page
    page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": SLOWER})
    old = OldAnswers(open_lab)
    wait_until(lambda: old.count > 0, "an answer from before the end is on its way", 20)
    if is_known:
        old.hold_no_more()
    somebody_ended_it(open_lab)
    open_lab.expect_ended("stopped from outside")
    if is_known:
        wait_until(lambda: not open_lab.lab.ask("GET", "api/sessions"), "Jupyter gave the kernel up", 60)
        page.evaluate("() => void window.jupyterapp.serviceManager.sessions.refreshRunning()")
    else:
        old.hold_no_more()
    open_lab.press(open_lab.toast("stopped from outside"), "Start again")
    expect(open_lab.badge).to_have_attribute("data-state", re.compile("starting|ready"), timeout=30 * SECOND)
    old.arrive()
    open_lab.expect_ready()
    open_lab.run("20+3")
    expect(open_lab.outputs.last).to_have_text("23", timeout=60 * SECOND)
    assert len(open_lab.lab.alive()) == 1
    assert len(open_lab.lab.ask("GET", "api/sessions")) == 1, "the notebook has one session, for Jupyter too"
    panel = open_lab.show_panel()
    expect(panel.locator('.openai4s-Card[data-state="ready"]')).to_have_count(1)
    ended = panel.locator(".openai4s-Card").filter(has_text="stopped from outside").first
    expect(ended.locator('[data-action="start-again"]')).to_have_count(0)
