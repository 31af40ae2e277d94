"""A browser, and JupyterLab servers that several tests share. Run this folder in a process of its own.

The browser is the machine's Chromium, driven by Playwright; authentication stays on. Screenshots of a full-length run
go to docs/images.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page

from checks.parts.lab import Lab
from checks.parts.place import REPOSITORY, make_place
from checks.parts.suite import FULL_LENGTH

from .freezer import Freezer
from .notebook import Notebook

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
CLUSTER = """
default_profile = "default"

[limits]
max_sessions = 8

[control]
period_s = 1

[backends.queue]
over = "local"
places = 1
turn_s = 900

[profiles.default]
backend = "queue"
display_name = "local session"

[profiles.long]
backend = "queue"
display_name = "long session"
walltime_s = 7200
max_walltime_s = 14400
memory_mb = 4096
cpus = 4

[profiles.folder]
backend = "queue"
display_name = "folder session"
workspace = "notebook"

[profiles.short]
backend = "queue"
display_name = "short session"
walltime_s = 12

[profiles.brief]
backend = "queue"
display_name = "brief session"
walltime_s = 60
max_walltime_s = 7200

[profiles.closed]
backend = "elsewhere"
display_name = "closed session"

[profiles.hasty]
backend = "queue"
display_name = "hasty session"
[profiles.hasty.leases]
idle_ttl_s = 20
warn_s = 14
"""


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    return {**browser_type_launch_args, "executable_path": CHROMIUM, "args": list(FLAGS)}


@pytest.fixture(scope="session")
def browser_context_args(browser_context_args: dict[str, Any]) -> dict[str, Any]:
    return {**browser_context_args, "viewport": {"width": 1280, "height": 800}, "timezone_id": "UTC"}


@pytest.fixture(scope="session")
def lab(run_mark: str) -> Iterator[Lab]:
    """One JupyterLab for most tests: one allocation at a time, so that a second session waits."""
    root = Path(tempfile.mkdtemp(prefix="o4s-", dir="/tmp"))
    server = Lab(make_place(root), CLUSTER)
    server.install_kernels(("default", "long", "folder", "short", "brief", "closed", "hasty"))
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def open_lab(lab: Lab, page: Page, wait_until: Callable[..., Any]) -> Iterator[Notebook]:
    """A page for the shared server, nothing loaded yet; an empty server again afterwards."""
    yield Notebook(page, lab)
    page.goto("about:blank")
    if not lab.is_running:
        lab.start()
    lab.shut_everything_down()
    wait_until(lambda: not lab.alive(), "every session has ended", 40)


@pytest.fixture
def occupied(lab: Lab, wait_until: Callable[..., Any]) -> Callable[[], None]:
    """Somebody else's session holds the only place. Calling it gives the place back."""
    lab.write_notebook("occupant.ipynb", "default")
    opened = lab.open_session("occupant.ipynb", "default")
    wait_until(lambda: [each["state"] for each in lab.alive()] == ["ready"], "the place is taken", 60)
    return lambda: lab.ask("DELETE", f"api/sessions/{opened['id']}")


@pytest.fixture
def freeze(lab: Lab) -> Iterator[Callable[[str], Freezer]]:
    """`freeze(pattern)`: the next process of a session with such a command line stops before it did anything."""
    made: list[Freezer] = []

    def start(pattern: str) -> Freezer:
        made.append(Freezer(pattern, str(lab.place.root)))
        return made[-1]

    yield start
    for each in made:
        each.thaw()


@pytest.fixture
def picture(context: BrowserContext) -> Callable[..., None]:
    """`picture(page, name)`: a screenshot for the documentation, at full length only."""

    def take(page: Page, name: str, **options: Any) -> None:
        if os.environ.get(FULL_LENGTH):
            folder = REPOSITORY / "docs" / "images"
            folder.mkdir(exist_ok=True)
            page.screenshot(path=folder / f"{name}.png", animations="disabled", **options)

    return take
