"""Kernels of other languages in a session: R, over ipc, and one that can only do TCP, in a network of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from checks.parts.leftovers import processes_of
from openai4s_provisioner.gateway.kernel_check import KernelSilent
from openai4s_provisioner.jupyter.cli import main
from openai4s_provisioner.orchestration.errors import Refused
from openai4s_provisioner.orchestration.models import Phase
from openai4s_provisioner.orchestration.reasons import Reason

from .conftest import DEADLINE_S, SessionLab, processes_below

pytestmark = pytest.mark.anyio

BUSY_S = 25.0 if os.environ.get("OPENAI4S_FULL") else 7.0  # longer than two looks of Jupyter's restarter, 3 s apart
SLEEP = "sleep 1000"
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
HAS_R = R.kernel in KernelSpecManager().find_kernel_specs()


def languages(*chosen: Language) -> pytest.MarkDecorator:
    """Runs the test with each of these kernels."""
    needs_r = pytest.mark.skipif(not HAS_R, reason="needs R's kernel: apt-get install r-cran-irkernel")
    each = [pytest.param(one, id=one.kernel, marks=[needs_r] if one is R else []) for one in chosen]
    return pytest.mark.parametrize("language", each, indirect=True)


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
    install(language)
    return f"{language.kernel}-default-session"


def install(language: Language, *options: str) -> None:
    """As a person installs it."""
    if language is not R:
        mode = "message" if language is TCP_BY_MESSAGE else "signal"
        write_kernelspec(language.kernel, interrupt_mode=mode, env={"INTERRUPTS": f"by {mode}"})
        options = ("--transport", "tcp", *options)
    assert main(["kernels", "install", "--kernel", language.kernel, *options]) == 0


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

    async def until_it_takes_cells(self) -> None:
        """R's kernel turns down, without output, whatever comes within a second of an interrupt."""
        assert self.lab.client is not None
        while (await self.lab.reply_to(self.lab.client.execute("1")))["status"] != "ok":  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def begin(self, code: str) -> str:
        """Start a cell; returns once it runs."""
        assert self.lab.client is not None
        message_id = str(self.lab.client.execute(f"{self.language.say.format('running')}\n{code}"))
        while True:
            message = await self.lab.client.get_iopub_msg(timeout=DEADLINE_S)
            if message["msg_type"] == "stream" and message["parent_header"].get("msg_id") == message_id:
                break
        if SLEEP in code:  # R looks for an interrupt that comes before its program was started only after that
            await self.lab.until(self._is_asleep, "the program is started")
        return message_id

    def _is_asleep(self) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return any(each.cmdline() == SLEEP.split() for each in processes_of(str(self.lab.work.parent)))
        return False


@pytest.fixture
def notebook(lab: SessionLab, language: Language) -> Notebook:
    return Notebook(lab, language)


@languages(R, TCP)
async def test_cells_print_fail_and_remember(notebook: Notebook, language: Language) -> None:
    await notebook.lab.start()
    assert await notebook.run(language.say.format("hello")) == ("ok", "hello")
    assert (await notebook.run(language.remember))[0] == "ok"
    assert await notebook.run(language.recall) == ("ok", "42")
    assert (await notebook.run(language.fail))[0] == "error"
    long = "0123456789" * 20_000
    assert await notebook.run(language.say.format(long)) == ("ok", long)


@languages(R, TCP, TCP_BY_MESSAGE)
async def test_an_interrupt_ends_what_never_ends(notebook: Notebook, language: Language) -> None:
    lab = notebook.lab
    await lab.start()
    await notebook.run(language.remember)
    for loop in language.loops:
        running = await notebook.begin(loop)
        await lab.manager.interrupt_kernel()
        reply = await lab.reply_to(running)
        assert reply["status"] in {"error", "abort"} or "system" in loop, loop
        await notebook.until_it_takes_cells()
        assert await notebook.run(language.recall) == ("ok", "42"), "the kernel's memory is still there"


@languages(R, TCP)
async def test_a_heartbeat_that_is_silent_while_busy_is_not_death(notebook: Notebook, language: Language) -> None:
    """Neither to us nor to Jupyter's restarter; and the cell ends as if nobody had asked."""
    lab = notebook.lab
    restarts: list[str] = []
    for event in ("restart", "dead"):
        lab.manager.add_restart_callback(lambda event=event: restarts.append(event), event)
    await lab.start()
    assert lab.client is not None
    lab.client.hb_channel.unpause()
    await lab.until(lab.client.hb_channel.is_beating, "the heart beats while the kernel is idle")
    running = await notebook.begin(language.busy.format(BUSY_S))
    await lab.until(lambda: not _is_beating(lab), "the heart is silent while the kernel is busy", BUSY_S)
    assert await lab.manager.is_alive()
    assert (await lab.reply_to(running))["status"] == "ok"
    assert await lab.manager.is_alive()
    assert restarts == []
    await lab.until(lambda: _is_beating(lab), "the heart beats again")


@languages(R, TCP)
async def test_a_restart_gives_a_fresh_kernel_in_the_same_place(
    notebook: Notebook, language: Language, place: Any
) -> None:
    lab = notebook.lab
    await lab.start()
    await notebook.run(language.remember)
    before = await lab.situation()
    (worker,) = workers_below(place.root)
    for now in (False, True):
        await lab.manager.restart_kernel(now=now)
        await lab.connect()
        assert (await notebook.run(language.recall))[0] == "error", "the kernel is fresh"
        assert (await notebook.run(language.remember))[0] == "ok"
    after = await lab.situation()
    assert after.allocation.allocation_id == before.allocation.allocation_id
    assert [each.pid for each in workers_below(place.root)] == [worker.pid]


@languages(R, TCP)
async def test_a_shutdown_leaves_nothing(notebook: Notebook, language: Language, no_process_left: Any) -> None:
    lab = notebook.lab
    await lab.start()
    await notebook.run(language.remember)
    await lab.situation()
    assert lab.client is not None
    reply = lab.client.shutdown()
    assert reply, "the request was sent"
    said = await lab.client.get_control_msg(timeout=DEADLINE_S)
    assert said["msg_type"] == "shutdown_reply", "its last words arrive"
    await lab.manager.shutdown_kernel()
    assert (await lab.situation()).workload.phase is Phase.COMPLETED
    no_process_left()


@languages(TCP)
async def test_a_kernel_that_is_killed_is_restarted(notebook: Notebook, language: Language, place: Any) -> None:
    lab = notebook.lab
    await lab.start()
    await notebook.run(language.remember)
    restarts: list[str] = []
    lab.manager.add_restart_callback(lambda: restarts.append("restart"), "restart")
    kernel_of(place.root, language).kill()
    await lab.until(lambda: restarts, "Jupyter's restarter restarts the kernel")
    await lab.until(lambda: lab.manager.ready.done() and lab.manager.has_kernel, "the kernel is back")
    await lab.connect()
    assert (await notebook.run(language.recall))[0] == "error", "the kernel is fresh"


@languages(R, TCP)
def test_the_synchronous_manager_with_a_blocking_client(
    work: Path, session_kernel: str, language: Language, control_planes: None
) -> None:
    """As `jupyter console` and scripts use a kernel."""
    manager = KernelManager(kernel_name=session_kernel)
    manager.start_kernel(cwd=str(work))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=DEADLINE_S)
    said: list[str] = []
    try:
        client.execute_interactive(
            language.say.format("hello"),
            timeout=DEADLINE_S,
            output_hook=lambda message: said.append(message["content"].get("text", "")),
        )
        assert "".join(said).strip() == "hello"
        assert manager.is_alive()
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    assert not manager.is_alive()


@languages(TCP)
async def test_a_question_of_a_tcp_kernel_is_answered(notebook: Notebook) -> None:
    lab = notebook.lab
    await lab.start()

    async def answer(message: Any) -> None:
        assert lab.client is not None
        assert message["content"]["prompt"] == "name? "
        lab.client.input("Ada")

    assert await notebook.run("print(input('name? '))", allow_stdin=True, stdin_hook=answer) == ("ok", "Ada")


async def test_a_kernel_that_cannot_add_is_refused_and_may_be_started_again_at_once(lab: SessionLab) -> None:
    """The first session may not be over by then: the second start must not end up in it."""
    mark = lab.work / "knows-no-sums"
    mark.touch()
    with pytest.raises(KernelSilent, match=r"could not run 1\+1"):
        await lab.start()
    mark.unlink()
    await lab.start()
    assert await Notebook(lab, TCP).run("print('a rose')") == ("ok", "a rose")


async def test_a_kernel_that_cannot_add_is_ready_where_the_profile_asks_it_for_less(
    lab: SessionLab, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = place.root / "cluster.toml"
    site.write_text('[profiles.poetry]\nready_check = "kernel_info"\n')
    monkeypatch.setenv("OPENAI4S_CLUSTER_TOML", str(site))
    write_kernelspec("poet", metadata={"openai4s": {"transport": "tcp"}})
    assert main(["kernels", "install", "--kernel", "poet"]) == 0
    (lab.work / "knows-no-sums").touch()
    lab.manager.kernel_name = "poet-poetry-session"
    await lab.start()
    assert await Notebook(lab, TCP).run("print('a rose')") == ("ok", "a rose")


async def test_an_unknown_transport_is_refused_by_name(lab: SessionLab) -> None:
    spec = Path(KernelSpecManager().find_kernel_specs()[lab.manager.kernel_name]) / "kernel.json"
    stanza = json.loads(spec.read_text())
    stanza["metadata"]["openai4s"]["transport"] = "pigeon post"
    spec.write_text(json.dumps(stanza))
    with pytest.raises(Refused, match=r"tcp-only.*transport must be 'ipc' or 'tcp', and is 'pigeon post'") as caught:
        await lab.start()
    assert caught.value.reason is Reason.INVALID_SPEC


async def test_that_it_reaches_nothing_outside_is_in_the_sessions_log(lab: SessionLab, place: Any) -> None:
    await lab.start()
    (log,) = (place.home / ".local/state/openai4s/exchange/attempts").glob("*/worker-0.log")
    assert "cannot reach anything outside" in log.read_text()


def _is_beating(lab: SessionLab) -> bool:
    assert lab.client is not None
    return bool(lab.client.hb_channel.is_beating())


def workers_below(root: Path) -> list[psutil.Process]:
    return [each for each in processes_below(root, ".pyz worker ") if each.cmdline()[2].endswith(".pyz")]


def kernel_of(root: Path, language: Language) -> psutil.Process:
    (worker,) = workers_below(root)
    name = "/usr/lib/R/bin/exec/R" if language is R else TCP_KERNEL.name
    found = [each for each in worker.children(recursive=True) if name in " ".join(each.cmdline())]
    return found[-1]
