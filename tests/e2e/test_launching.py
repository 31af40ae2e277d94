"""Resources at the kernel's start: the dialog, its limits, and what a notebook remembers."""

from __future__ import annotations

import json
from collections.abc import Callable

from playwright.sync_api import Page, expect

from .notebook import Notebook


def dialog_field(page: Page, name: str) -> str:
    return f"#openai4s-amount-{name}"


def test_a_notebook_gets_a_kernel_of_the_size_that_was_chosen_and_remembers_it(
    open_lab: Notebook, picture: Callable[..., None], wait_until: Callable[..., None]
) -> None:
    page = open_lab.page
    open_lab.load()
    page.locator(".jp-LauncherCard").filter(has_text="New cluster notebook").click()
    dialog = page.locator(".jp-Dialog")
    dialog.get_by_label("Profile").select_option("long")
    expect(dialog.get_by_label("Time (hours)")).to_have_value("2")
    dialog.get_by_label("Memory (GB)").fill("2")
    dialog.get_by_label("CPUs").fill("3")
    picture(page, "new-cluster-notebook")
    dialog.get_by_role("button", name="Start").click()
    open_lab.expect_ready()
    [session] = open_lab.lab.alive()
    assert session["profile"] == "long"
    assert session["resources"] | {"cpus": 3, "memory_mb": 2048} == session["resources"]
    path = session["kernels"][0]["path"]
    metadata = json.loads((open_lab.lab.place.work / path).read_text(encoding="utf-8"))["metadata"]
    assert metadata["openai4s"]["profile"] == "long"
    assert metadata["openai4s"]["resources"]["memory_mb"] == 2048

    open_lab.load(path)
    open_lab.expect_ready()
    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.get_by_role("menuitem", name="Choose Cluster Resources").click()
    expect(page.locator(".jp-Dialog").get_by_label("CPUs")).to_have_value("3")
    page.locator(".jp-Dialog").get_by_label("CPUs").fill("1")
    page.locator(".jp-Dialog").get_by_role("button", name="Start").click()
    alive = open_lab.lab.alive
    wait_until(lambda: [each["resources"]["cpus"] for each in alive()] == [1], "the other one replaced it", 60)
    open_lab.expect_ready()


def test_more_than_the_profile_allows_is_refused_beside_the_field(open_lab: Notebook) -> None:
    page = open_lab.page
    open_lab.load()
    page.locator(".jp-LauncherCard").filter(has_text="New cluster notebook").click()
    dialog = page.locator(".jp-Dialog")
    dialog.get_by_label("Profile").select_option("long")
    dialog.get_by_label("CPUs").fill("99")
    expect(dialog.locator(".openai4s-Amount-fault")).to_contain_text("between 1 and 4")
    expect(dialog.get_by_role("button", name="Start")).to_be_disabled()
    dialog.get_by_label("CPUs").fill("")
    expect(dialog.get_by_role("button", name="Start")).to_be_disabled()
    page.locator(".jp-Dialog").get_by_role("button", name="Cancel").click()
    assert not open_lab.lab.alive()


def test_a_profile_that_states_no_limits_starts_as_it_is(open_lab: Notebook) -> None:
    page = open_lab.page
    open_lab.load()
    page.locator(".jp-LauncherCard").filter(has_text="New cluster notebook").click()
    dialog = page.locator(".jp-Dialog")
    dialog.get_by_label("Profile").select_option("default")
    dialog.get_by_role("button", name="Start").click()
    open_lab.expect_ready()
    [session] = open_lab.lab.alive()
    assert (session["profile"], session["resources"]["memory_mb"]) == ("default", 0)
