"""Kernels of other languages in a session: R, over ipc, and one that can only do TCP, in a network of its own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from openai4s_provisioner.jupyter.cli import main
from openai4s_provisioner.orchestration.errors import Refused
from openai4s_provisioner.orchestration.models import Phase

from .conftest import DEADLINE_S, SessionLab, processes_below

pytestmark = pytest.mark.anyio

BUSY_S = 25.0 if os.environ.get("OPENAI4S_FULL") else 7.0  # longer than two looks of Jupyter's restarter, 3 s apart
TCP_KERNEL = Path(__file__).with_name("tcp_kernel.py")


@dataclass(frozen=True)
class Language:
    """A kernel, and how to say in its language what the tests say."""

    kernel: str
    say: str  # prints its argument at once
    busy: str  # computes for so many seconds, then prints "done"
    loops: tuple[str, ...]  # never end; an interrupt ends them
    fail: str
    remember: str
    recall: str  # prints what `remember` remembered; fails in a fresh kernel


R = Language(
    kernel="ir",
    say="cat({!r}); flush.console()",
    busy="end <- Sys.time() + {}; while (Sys.time() < end) {{}}; cat('done')",
    loops=("repeat {}", "Sys.sleep(1000)", "system('sleep 1000')"),
    fail="stop('broken')",
    remember="x <- 41",
    recall="cat(x + 1)",
)
TCP = Language(
    kernel="tcp-only",
    say="print({!r})",
    busy="import time; end = time.time() + {}\nwhile time.time() < end: pass\nprint('done')",
    loops=("while True: pass", "import time; time.sleep(1000)", "import os; os.system('sleep 1000'); 1 / 0"),
    fail="raise RuntimeError('broken')",
    remember="x = 41",
    recall="print(x + 1)",
)
TCP_BY_MESSAGE = Language("tcp-by-message", TCP.say, TCP.busy, TCP.loops[:2], TCP.fail, TCP.remember, TCP.recall)
LANGUAGES = [R, TCP, TCP_BY_MESSAGE]


def write_kernelspec(name: str, **stanza: Any) -> None:
    folder = Path(os.environ["JUPYTER_DATA_DIR"]) / "kernels" / name
    folder.mkdir(parents=True)
    shutil.copy(TCP_KERNEL, folder)
    argv = [sys.executable, f"{{resource_dir}}/{TCP_KERNEL.name}", "-f", "{connection_file}"]
    content = {"argv": argv, "display_name": name, "language": "python", **stanza}
    (folder / "kernel.json").write_text(json.dumps(content))


@pytest.fixture
def language(request: pytest.FixtureRequest) -> Language:
    found: Language = getattr(request, "param", TCP)
    return found


@pytest.fixture
def session_kernel(place: Any, language: Language) -> str:
    """Installed as a person installs it."""
    options = []
    if language is not R:
        mode = "message" if language is TCP_BY_MESSAGE else "signal"
        write_kernelspec(language.kernel, interrupt_mode=mode)
        options = ["--transport", "tcp"]
    assert main(["kernels", "install", "--kernel", language.kernel, *options]) == 0
    return f"{language.kernel}-default-session"


every_language = pytest.mark.parametrize("language", LANGUAGES, ids=lambda each: each.kernel, indirect=True)


@dataclass
class Notebook:
    """Cells in any language, over a session's own client."""

    lab: SessionLab
    language: Language

    async def run(self, code: str, **options: Any) -> tuple[str, str]:
        """The reply's status, and what was printed."""
        assert self.lab.client is not None
        said: list[str] = []
        reply = await self.lab.client.execute_interactive(
            code, timeout=DEADLINE_S, output_hook=lambda m: said.append(m["content"].get("text", "")), **options
        )
        return reply["content"]["status"], "".join(said).strip()

    async def begin(self, code: str) -> str:
        """Start a cell; returns once it runs."""
        assert self.lab.client is not None
        message_id = str(self.lab.client.execute(f"{self.language.say.format('running')}\n{code}"))
        while True:
            message = await self.lab.client.get_iopub_msg(timeout=DEADLINE_S)
            if message["msg_type"] == "stream" and message["parent_header"].get("msg_id") == message_id:
                return message_id


@pytest.fixture
def notebook(lab: SessionLab, language: Language) -> Notebook:
    return Notebook(lab, language)


@every_language
async def test_cells_print_fail_and_remember(notebook: Notebook, language: Language) -> None:
    await notebook.lab.start()
    assert await notebook.run(language.say.format("hello")) == ("ok", "hello")
    assert (await notebook.run(language.remember))[0] == "ok"
    assert await notebook.run(language.recall) == ("ok", "42")
    assert (await notebook.run(language.fail))[0] == "error"
    long = "0123456789" * 20_000
    assert await notebook.run(language.say.format(long)) == ("ok", long)
