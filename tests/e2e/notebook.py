"""What a person does in JupyterLab, as a test says it: open, pick a kernel's card, run a cell, read the badge."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import ConsoleMessage, Locator, Page, expect

from checks.parts.lab import Lab

CONDITIONS = ("allocation_granted", "worker_registered", "workspace_ready", "kernel_ready")
SECOND = 1000


class Notebook:
    """One page of JupyterLab."""

    def __init__(self, page: Page, lab: Lab, address: str = "") -> None:
        self.page = page
        self.lab = lab
        self.address = address or lab.address
        self.errors: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.errors.append(error.stack or str(error)))

    def load(self, path: str = "") -> None:
        """Open the lab, or one notebook in it, and wait until it can be used."""
        where = f"lab/tree/{path}" if path else "lab"
        self.page.goto(f"{self.address}{where}?reset&token={self.lab.token}")
        expect(self.page.locator("#jp-main-dock-panel")).to_be_visible(timeout=60 * SECOND)
        expect(self.page.locator("#jupyterlab-splash")).to_be_hidden(timeout=60 * SECOND)

    def start(self, card: str) -> None:
        """Click a kernel's card in the launcher's row of notebooks."""
        launcher = self.page.locator('.jp-Launcher-section:has-text("Notebook") .jp-LauncherCard').filter(has_text=card)
        launcher.first.click()
        expect(self.page.locator(".jp-NotebookPanel")).to_be_visible(timeout=30 * SECOND)

    def run(self, code: str) -> None:
        """Type into the notebook's last cell and run it, as a person does."""
        expect(self.badge).to_be_visible(timeout=30 * SECOND)  # before, JupyterLab may not know the kernel yet
        cells = self.page.locator(".jp-Notebook .jp-CodeCell")
        cell = cells.nth(cells.count() - 1)
        cell.locator(".cm-content").click()
        self.page.keyboard.type(code)
        expect(cell.locator(".cm-content")).to_contain_text(code)
        self.page.keyboard.press("Shift+Enter")

    @property
    def outputs(self) -> Locator:
        return self.page.locator(".jp-Notebook .jp-OutputArea-output")

    @property
    def badge(self) -> Locator:
        return self.page.locator(".jp-NotebookPanel-toolbar .openai4s-Badge-button")

    @property
    def status_item(self) -> Locator:
        return self.page.locator("#jp-main-statusbar .openai4s-Badge-button")

    def expect_missing(self, condition: str, timeout_s: float = 30) -> None:
        expect(self.badge).to_have_attribute("data-missing", condition, timeout=timeout_s * SECOND)

    def expect_ready(self, timeout_s: float = 60) -> None:
        expect(self.badge).to_have_attribute("data-state", "ready", timeout=timeout_s * SECOND)

    def expect_ended(self, words: str, timeout_s: float = 60) -> None:
        expect(self.badge).to_have_attribute("data-state", re.compile("ended|failed"), timeout=timeout_s * SECOND)
        expect(self.badge).to_contain_text(words, timeout=timeout_s * SECOND)

    def show_panel(self) -> Locator:
        panel = self.page.locator("#openai4s-panel")
        if not panel.is_visible():
            self.page.locator('.jp-SideBar [data-id="openai4s-panel"]').click()
        expect(panel.locator(".openai4s-Panel-content")).to_be_visible()
        return panel

    def close_dialog(self, words: str) -> None:
        """Jupyter's own dialog, about a start that failed (it has our sentence) or a kernel that is started again."""
        dialog = self.page.locator(".jp-Dialog")
        expect(dialog).to_contain_text(words, timeout=60 * SECOND)
        dialog.locator(".jp-mod-accept").click()

    def closes_connection_error(self) -> None:
        """From now on: JupyterLab's own dialog about a server that is away, which comes after some seconds."""
        theirs = self.page.locator(".jp-Dialog").filter(has_text="Server Connection Error")
        self.page.add_locator_handler(theirs, lambda: theirs.get_by_role("button", name="Close").click())

    def closes_failed_start(self) -> None:
        """From now on: Jupyter's own dialog, which comes if a start has failed by the time that it is answered."""
        theirs = self.page.locator(".jp-Dialog").filter(has_text="Error Starting Kernel")
        self.page.add_locator_handler(theirs, lambda: theirs.locator(".jp-mod-accept").click())

    def toast(self, words: str) -> Locator:
        return self.page.locator(".Toastify__toast").filter(has_text=words)

    def press(self, toast: Locator, label: str) -> None:
        toast.get_by_role("button", name=label, exact=True).click()

    @property
    def our_errors(self) -> list[str]:
        """Those of our own code; that a server was not there is told by the browser itself, whoever asked."""
        of_the_browser = ("Failed to load resource:", "WebSocket connection to")
        ours = [each for each in self.errors if "openai4s" in each]
        return [each for each in ours if not each.startswith(of_the_browser)]

    def snapshot(self) -> list[dict[str, Any]]:
        return self.lab.sessions()

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location.get('url', '')})")
