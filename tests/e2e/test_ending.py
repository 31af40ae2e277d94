"""However a session ends, the notebook says which way it was, what to do now, and "Start again" works."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from playwright.sync_api import expect

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


def test_a_kernel_that_exits_says_that_its_memory_is_gone(open_lab: Notebook) -> None:
    ready(open_lab, "exit.ipynb")
    open_lab.run("import os; os._exit(3)")
    open_lab.close_dialog("Kernel Restarting")
    told = open_lab.toast("started afresh")
    expect(told).to_be_visible(timeout=60 * SECOND)
    expect(told).to_contain_text("exit code 3")
    open_lab.expect_ready()


def test_a_session_whose_time_runs_out_is_warned_of_and_can_be_extended(
    open_lab: Notebook, picture: Callable[..., None], wait_until: WaitUntil
) -> None:
    ready(open_lab, "brief.ipynb", "brief")
    warning = open_lab.toast("machine's time ends")
    expect(warning).to_be_visible(timeout=30 * SECOND)
    picture(open_lab.page, "walltime-warning")
    before = open_lab.lab.alive()[0]["walltime_ends_at"]
    open_lab.press(warning, "Extend")
    wait_until(lambda: open_lab.lab.alive()[0]["walltime_ends_at"] > before, "the session is extended", 10)
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
