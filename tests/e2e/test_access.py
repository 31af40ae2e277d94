"""For everybody: no serious violation that axe-core finds, the keyboard reaches everything, and little to download."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, Response, expect

from checks.parts.place import REPOSITORY

from .notebook import Notebook

AXE = REPOSITORY / "labextension" / "node_modules" / "axe-core" / "axe.min.js"
MOST_KB = 60
THEME = "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })"
SERIOUS = {"serious", "critical"}


def violations(page: Page, selector: str) -> list[str]:
    page.add_script_tag(content=AXE.read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = page.evaluate("selector => axe.run(selector).then(r => r.violations)", selector)
    return [
        f"{each['id']}: {node['html'][:200]} {node['failureSummary'][:200]}"
        for each in found
        if each["impact"] in SERIOUS
        for node in each["nodes"]
    ]


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_axe_finds_nothing_serious_in_panel_and_dialog(open_lab: Notebook, theme: str, picture: Any) -> None:
    page = open_lab.page
    open_lab.lab.write_notebook("access.ipynb", "default")
    open_lab.load("access.ipynb")
    open_lab.expect_ready()
    page.evaluate(THEME, theme)
    expect(page.locator(f'body[data-jp-theme-name="{theme}"]')).to_have_count(1)
    open_lab.show_panel()
    found = violations(page, "#openai4s-panel")
    found += violations(page, ".openai4s-mod-toolbar") + violations(page, ".openai4s-mod-status")
    if "Dark" in theme:
        picture(page, "dark")
    page.evaluate("() => { window.jupyterapp.commands.execute('openai4s-provisioner:new-notebook'); }")
    expect(page.locator(".openai4s-Form")).to_be_visible()
    found += violations(page, ".openai4s-Form")
    page.keyboard.press("Escape")
    page.evaluate(THEME, "JupyterLab Light")  # the choice is kept on the server
    expect(page.locator('body[data-jp-theme-name="JupyterLab Light"]')).to_have_count(1)
    assert not found, "\n".join(found)


def test_the_keyboard_reaches_every_button_of_the_panel(open_lab: Notebook) -> None:
    open_lab.lab.write_notebook("keys.ipynb", "default")
    open_lab.load("keys.ipynb")
    open_lab.expect_ready()
    panel = open_lab.show_panel()
    card = panel.locator(".openai4s-Card").first
    expect(card.locator("button[data-action=keep]")).to_be_visible()  # its lease came, so this is the whole card
    there = card.locator("button[data-action]").evaluate_all("buttons => buttons.map(each => each.dataset.action)")
    reached: list[str] = []
    panel.get_by_role("heading", name="Sessions").click()
    while len(reached) < len(there):
        open_lab.page.keyboard.press("Tab")
        action = open_lab.page.evaluate("() => document.activeElement.dataset.action")
        assert action, f"the keyboard reaches {reached} of {there}"
        reached.append(action)
    assert reached == there


def test_a_cold_page_load_costs_little(open_lab: Notebook, figure: Any) -> None:
    sizes: dict[str, int] = {}

    def heard(response: Response) -> None:
        if "/extensions/openai4s-provisioner/" in response.url and response.url.partition("?")[0].endswith(".js"):
            sizes[response.url] = len(response.body())

    open_lab.page.on("response", heard)
    open_lab.load()
    open_lab.page.wait_for_load_state("networkidle")
    figure("our JavaScript on a cold page load, KB", round(sum(sizes.values()) / 1024, 1))
    assert sizes
    assert sum(sizes.values()) < MOST_KB * 1024
