"""What a session waits for is named, each by its real cause; giving it up leaves nothing; waiting loses nothing."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from checks.parts.suite import FULL_LENGTH

from .freezer import Freezer
from .notebook import SECOND, Notebook

QUEUED_S = 300 if os.environ.get(FULL_LENGTH) else 3
Occupied = Callable[[], None]
WaitUntil = Callable[..., Any]


def sessions_of(page: Notebook, path: str) -> list[dict[str, Any]]:
    return [each for each in page.snapshot() if each["kernels"][0]["path"] == path]


@pytest.fixture
def path() -> str:
    """A notebook of this test alone."""
    return f"waits-{secrets.token_hex(2)}.ipynb"


@pytest.fixture
def queued(open_lab: Notebook, occupied: Occupied, path: str) -> Notebook:
    """That notebook is open, and its session waits behind another one."""
    open_lab.lab.write_notebook(path, "long")
    open_lab.load(path)
    open_lab.expect_missing("allocation_granted")
    return open_lab


def test_a_queue_is_named_with_its_reason_and_estimate(queued: Notebook) -> None:
    expect(queued.badge).to_contain_text("queued: waiting for resources, estimated")
    expect(queued.status_item).to_contain_text("queued: waiting for resources, estimated")
    panel = queued.show_panel()
    card = panel.locator('.openai4s-Card[data-state="starting"]')
    expect(card.locator('[data-progress="missing"]')).to_have_attribute("data-condition", "allocation_granted")
    expect(card).to_contain_text("Place in the queue: 1.")
    expect(queued.toast("waits-")).to_have_count(1)


def by_the_toast(page: Notebook) -> None:
    page.press(page.toast("waits-"), "Cancel")


def by_the_panel(page: Notebook) -> None:
    page.show_panel().locator('.openai4s-Card[data-state="starting"] [data-action="stop"]').click()


def by_closing_the_notebook(page: Notebook) -> None:
    page.page.locator(".jp-NotebookPanel-toolbar").click(position={"x": 400, "y": 10})
    page.page.keyboard.press("Control+Shift+Q")
    page.page.locator(".jp-Dialog .jp-mod-accept").click()


def by_shutting_the_kernel_down(page: Notebook) -> None:
    page.page.locator('.jp-SideBar [data-id="jp-running-sessions"]').click()
    item = page.page.locator("#jp-running-sessions .jp-RunningSessions-item.jp-mod-kernel").filter(has_text="waits-")
    item.hover()
    item.locator(".jp-RunningSessions-itemShutdown").click()


WAYS = [by_the_toast, by_shutting_the_kernel_down]
if os.environ.get(FULL_LENGTH):
    WAYS += [by_the_panel, by_closing_the_notebook]


@pytest.mark.parametrize("give_up", WAYS)
def test_a_queued_session_is_given_up(
    queued: Notebook, path: str, give_up: Callable[[Notebook], None], wait_until: WaitUntil
) -> None:
    give_up(queued)
    wait_until(lambda: sessions_of(queued, path)[0]["state"] == "ended", "nothing is left queued", 15)
    [session] = sessions_of(queued, path)
    assert session["reason"]["code"] == "USER_CANCELLED"
    assert session["granted_at"] is None
    wait_until(
        lambda: [each["path"] for each in queued.lab.ask("GET", "api/sessions")] == ["occupant.ipynb"],
        "Jupyter holds no kernel for it any more",
        15,
    )


@pytest.mark.timeout(QUEUED_S + 150)
def test_a_cell_that_was_run_in_the_queue_runs_after_a_reload_too(
    queued: Notebook, occupied: Occupied, path: str
) -> None:
    queued.run("6*7")
    expect(queued.page.locator(".jp-InputArea-prompt").first).to_have_text("[*]:")
    queued.page.keyboard.press("Control+s")
    expect(queued.page.locator(".jp-mod-dirty.jp-NotebookPanel")).to_have_count(0)
    queued.page.wait_for_timeout(QUEUED_S * SECOND)
    queued.load(path)
    queued.expect_missing("allocation_granted")
    occupied()
    queued.expect_ready()
    expect(queued.outputs.last).to_have_text("42", timeout=60 * SECOND)
    assert [each["epoch"] for each in sessions_of(queued, path)] == [1], "one allocation was made"


def test_a_worker_that_hangs_before_it_connects_is_named(open_lab: Notebook, freeze: Callable[[str], Freezer]) -> None:
    frozen = freeze(r"^\S*python\S* -I \S+\.pyz worker ")
    open_lab.lab.write_notebook("worker.ipynb", "default")
    open_lab.load("worker.ipynb")
    open_lab.expect_missing("worker_registered")
    expect(open_lab.badge).to_contain_text("1 of 4 conditions: waiting for the worker, 0 of 1 connected")
    assert frozen.has_frozen
    open_lab.press(open_lab.toast("worker.ipynb"), "Cancel")
    open_lab.expect_ended("stopped at its owner's request")


def test_a_kernel_that_never_answers_is_named(
    open_lab: Notebook, freeze: Callable[[str], Freezer], picture: Callable[..., None]
) -> None:
    frozen = freeze(r"^\S*python\S* \S*.*-m ipykernel_launcher")
    open_lab.lab.write_notebook("kernel.ipynb", "default")
    open_lab.load("kernel.ipynb")
    open_lab.expect_missing("kernel_ready")
    expect(open_lab.badge).to_contain_text("3 of 4 conditions: waiting for the kernel to answer")
    assert frozen.has_frozen
    open_lab.show_panel()
    picture(open_lab.page, "waiting-kernel")
    open_lab.press(open_lab.toast("kernel.ipynb"), "Cancel")
    open_lab.expect_ended("stopped at its owner's request")


def test_a_workspace_that_is_missing_is_named(
    open_lab: Notebook, occupied: Occupied, picture: Callable[..., None]
) -> None:
    open_lab.lab.write_notebook("folder/gone.ipynb", "folder")
    open_lab.load("folder/gone.ipynb")
    open_lab.expect_missing("allocation_granted")
    shutil.move(open_lab.lab.place.work / "folder", open_lab.lab.place.root / "moved")
    occupied()
    open_lab.expect_ended("cannot use the workspace folder")
    open_lab.close_dialog("cannot use the workspace folder")
    open_lab.show_panel()
    picture(open_lab.page, "workspace-missing")


def test_a_server_that_stops_leaves_nothing_queued(queued: Notebook, path: str, wait_until: WaitUntil) -> None:
    lab = queued.lab
    [waiting] = sessions_of(queued, path)
    panel = queued.show_panel()
    assert lab.stop() < 20, "the server waited for a queued kernel"
    expect(panel.locator('[role="alert"]')).to_contain_text("The Jupyter server does not answer", timeout=30 * SECOND)
    expect(panel.locator(".openai4s-Card").first).to_be_visible()
    lab.start()
    wait_until(lambda: not lab.alive(), "nothing is left queued", 40)
    expect(panel.locator('[role="alert"]')).to_have_count(0, timeout=40 * SECOND)
    [ended] = [each for each in lab.sessions() if each["workload_id"] == waiting["workload_id"]]
    assert re.match("CANCELLED|FAILED|COMPLETED", ended["phase"])
    assert ended["granted_at"] is None
