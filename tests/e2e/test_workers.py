"""A session over several machines: the panel has the log of each worker, alone or all of them in the order of time."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from checks.parts.lab import Lab
from checks.parts.place import make_place
from openai4s_provisioner.testing import rank_backend

from .notebook import SECOND, Notebook

CLUSTER = "[backends.ranks]\n[profiles.default]\nbackend = 'ranks'\nnodes = 2\ndisplay_name = 'two machines'\n"


@pytest.fixture
def gang(run_mark: str) -> Iterator[Lab]:
    """A JupyterLab whose sessions have two workers."""
    root = Path(tempfile.mkdtemp(prefix="o4s-", dir="/tmp"))
    server = Lab(make_place(root), CLUSTER)
    record = root / "site" / "ranks-1.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: ranks\nVersion: 1\n")
    entry = f"[openai4s_provisioner.backends]\nranks = {rank_backend.__name__}:create_backend\n"
    (record / "entry_points.txt").write_text(entry)
    server.install_kernels(("default",))
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(root, ignore_errors=True)


def test_the_log_of_each_worker_can_be_chosen(gang: Lab, page: Page, picture: Any, wait_until: Any) -> None:
    opened = Notebook(page, gang)
    gang.write_notebook("gang.ipynb", "default")
    opened.load("gang.ipynb")
    opened.expect_ready()
    panel = opened.show_panel()
    expect(panel.locator('[data-condition="worker_registered"]')).to_contain_text("2 of 2")
    panel.locator('[data-action="log"]').click()
    log, whose = page.locator(".openai4s-Log pre"), page.get_by_label("Whose log")
    expect(log).to_contain_text("[0] ", timeout=20 * SECOND)
    expect(log).to_contain_text("[1] ")
    times = [line[4:27] for line in log.inner_text().splitlines() if line[:1] == "[" and line[4:6] == "20"]
    assert times == sorted(times)
    expect(whose.locator("option")).to_have_count(3)
    picture(page, "log")
    whose.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(whose).to_have_value("1")
    expect(log).to_contain_text("connected", timeout=20 * SECOND)
    expect(log).not_to_contain_text("[1] ")
    gang.shut_everything_down()
    expect(log.locator(".openai4s-Log-end")).to_contain_text("stopped at its owner's request", timeout=60 * SECOND)
    wait_until(lambda: not gang.alive(), "the session has ended", 40)
