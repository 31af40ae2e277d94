"""A session that waits in a queue is a kernel already: its start answers at once, and it can be given up.

With the kernel manager that comes with Jupyter, and with one of a portal's own.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpecManager
from tornado.httpclient import HTTPError

from checks.parts.server import Server

from .conftest import DEADLINE_S, Queue, StartServer, sessions, until, waits

pytestmark = pytest.mark.anyio
AT_ONCE_S = 3.0  # what answers at once, on a busy machine


async def model(server: Server, kernel_id: str) -> dict[str, Any] | None:
    answer = await server.ask("GET", f"api/kernels/{kernel_id}")
    return json.loads(answer.body) if answer.code == 200 else None


async def waiting_session(server: Server, queue: Queue, path: str = "a.ipynb") -> Any:
    """Open one; returns the answer once the queue has it, and how long the answer took."""
    began = time.monotonic()
    opened = await server.open_session(queue.kernel, path)
    took_s = time.monotonic() - began
    await until(lambda: waits(server), "it is in the queue")
    return opened, took_s


async def states(server: Server) -> list[tuple[str, str]]:
    found = await sessions(server)
    return [(each["state"], each["reason"]["code"] if each["reason"] else "") for each in found]


PORTALS_OWN = """
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

class PortalKernelManager(AsyncMappingKernelManager):
    async def start_kernel(self, **kwargs):
        self.log.info("the portal was here")
        return await super().start_kernel(**kwargs)
"""


@pytest.fixture(params=["Jupyter's own manager", "a portal's own manager", "every kernel may be pending"])
def options(request: pytest.FixtureRequest, place: Any, queue: Queue) -> list[str]:
    if request.param.startswith("Jupyter"):
        return []
    if request.param.startswith("every"):
        return ["--AsyncMultiKernelManager.use_pending_kernels=True"]
    (place.root / "site" / "portal.py").write_text(PORTALS_OWN)
    return ["--ServerApp.kernel_manager_class=portal.PortalKernelManager"]


async def test_a_cell_that_is_run_while_the_session_waits_runs_when_it_is_ready(
    queue: Queue, start_server: StartServer, options: list[str], no_process_left: Any
) -> None:
    async with start_server(*options) as server:
        opened, took_s = await waiting_session(server, queue)
        assert took_s < AT_ONCE_S
        assert opened["kernel"]["execution_state"] == "starting"
        (listed,) = json.loads((await server.ask("GET", "api/sessions")).body)
        assert listed["kernel"]["id"] == opened["kernel"]["id"], "a page that is loaded anew finds it"

        async def cell() -> Any:
            async with server.channels(opened["kernel"]["id"]) as channels:
                return await channels.execute("1+1")

        running = asyncio.ensure_future(cell())
        await asyncio.sleep(0)
        queue.open()
        assert (await asyncio.wait_for(running, DEADLINE_S))["status"] == "ok"
        assert len(queue.submissions) == 1
        assert (await server.ask("DELETE", f"api/sessions/{opened['id']}")).code == 204
        assert server.stop() == 0


async def test_shutting_down_a_queued_kernel_gives_everything_back_at_once(
    queue: Queue, start_server: StartServer, options: list[str], no_process_left: Any
) -> None:
    async with start_server(*options) as server:
        opened, _ = await waiting_session(server, queue)
        began = time.monotonic()
        assert (await server.ask("DELETE", f"api/sessions/{opened['id']}")).code == 204
        assert time.monotonic() - began < AT_ONCE_S
        assert json.loads((await server.ask("GET", "api/kernels")).body) == []
        await until(lambda: _all_ended(server), "nothing is left queued")
        assert await states(server) == [("ended", "USER_CANCELLED")]
        assert server.stop() == 0


async def _all_ended(server: Server) -> bool:
    return all(state == "ended" for state, _ in await states(server))


async def test_a_kernel_that_is_shut_down_before_it_was_submitted_leaves_nothing(
    queue: Queue, start_server: StartServer, no_process_left: Any
) -> None:
    async with start_server() as server:
        opened = await server.open_session(queue.kernel, "a.ipynb")
        assert (await server.ask("DELETE", f"api/sessions/{opened['id']}")).code == 204
        await until(lambda: _all_ended(server), "nothing is left queued")
        assert server.stop() == 0


async def test_an_interrupt_is_answered_and_a_restart_keeps_the_place_in_the_queue(
    queue: Queue, start_server: StartServer, no_process_left: Any
) -> None:
    async with start_server() as server:
        opened, _ = await waiting_session(server, queue)
        kernel = f"api/kernels/{opened['kernel']['id']}"
        refused = await server.ask("POST", f"{kernel}/interrupt", timeout_s=AT_ONCE_S)
        assert refused.code == 409
        assert "still waits" in json.loads(refused.body)["message"]
        assert (await server.ask("POST", f"{kernel}/restart", timeout_s=AT_ONCE_S)).code == 200
        queue.open()
        await until(lambda: _is_idle(server, opened["kernel"]["id"]), "it starts when there is room")
        assert len(queue.submissions) == 1, "it kept its place"
        assert (await server.ask("POST", f"{kernel}/restart")).code == 200, "and is restarted as usual afterwards"
        assert len(queue.submissions) == 1
        assert server.stop() == 0


async def _is_idle(server: Server, kernel_id: str) -> bool:
    found = await model(server, kernel_id)
    return found is not None and found["execution_state"] == "idle"


async def test_a_server_that_ends_leaves_nothing_queued(
    queue: Queue, start_server: StartServer, options: list[str], no_process_left: Any
) -> None:
    async with start_server(*options) as server:
        await waiting_session(server, queue)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 2 * AT_ONCE_S
    async with start_server() as server:
        assert await states(server) == [("ended", "USER_CANCELLED")]


async def test_two_starts_for_one_notebook_end_with_one_allocation(
    queue: Queue, start_server: StartServer, no_process_left: Any
) -> None:
    async with start_server() as server:
        both = await asyncio.gather(*(server.open_session(queue.kernel, "a.ipynb") for _ in range(2)))
        assert both[0]["id"] == both[1]["id"]
        await until(lambda: waits(server), "it is in the queue")
        queue.open()
        await until(lambda: _is_idle(server, both[0]["kernel"]["id"]), "it starts when there is room")
        assert len(queue.submissions) == 1
        assert len(await sessions(server)) == 1
        assert server.stop() == 0


async def test_jupyterlab_s_double_start_ends_with_one_allocation(
    queue: Queue, start_server: StartServer, no_process_left: Any
) -> None:
    """A cell run just after a notebook was opened makes JupyterLab start twice. Each start is for a path of its own,
    and the one that was overtaken is shut down as soon as it is answered."""
    async with start_server() as server:
        starts = [await server.open_session(queue.kernel, f"{name}.ipynb") for name in ("1-uuid", "2-uuid")]
        assert (await server.ask("DELETE", f"api/sessions/{starts[0]['id']}")).code == 204
        renamed = await server.ask("PATCH", f"api/sessions/{starts[1]['id']}", {"path": "a.ipynb", "name": "a.ipynb"})
        assert json.loads(renamed.body)["kernel"]["id"] == starts[1]["kernel"]["id"]
        queue.open()
        await until(lambda: _is_idle(server, starts[1]["kernel"]["id"]), "the other one starts")

        async def one_is_left() -> bool:
            return [state for state, _ in await states(server) if state != "ended"] == ["ready"]

        await until(one_is_left, "one session is left")
        assert server.stop() == 0


async def test_what_can_never_run_ends_with_the_sentences_that_say_why(
    start_server: StartServer, queue: Queue, no_process_left: Any
) -> None:
    async with start_server() as server:
        await waiting_session(server, queue)
        why = "It asks for more than there is. Choose less memory."
        (queue.folder / "never").write_text(why)

        async def over() -> Any:
            return next((each for each in await sessions(server) if each["state"] == "ended"), None)

        session = await until(over, "it is over")
        assert session["reason"] | {"actor": ""} == {
            "code": "UNSCHEDULABLE",
            "sentence": "No machine can ever satisfy this request.",
            "detail": why,
            "remedy": "Choose a smaller profile.",
            "actor": "",
        }
        assert session["sentence"] == f"No machine can ever satisfy this request. {why} Choose a smaller profile."
        assert session["detail"] == "(never)"
        assert server.stop() == 0


async def test_with_blocking_starts_a_server_that_ends_leaves_nothing_queued_either(
    queue: Queue, start_server: StartServer, no_process_left: Any
) -> None:
    async with start_server("--OpenAI4S.pending_kernels=False") as server:
        asked = asyncio.ensure_future(server.open_session(queue.kernel, "a.ipynb"))
        await until(lambda: waits(server), "it is in the queue")
        assert not asked.done()
        assert json.loads((await server.ask("GET", "api/kernels")).body) == []
        assert await asyncio.to_thread(server.stop) == 0
        with pytest.raises((RuntimeError, OSError, HTTPError)):
            await asked
    async with start_server() as server:
        assert await states(server) == [("ended", "USER_CANCELLED")]


async def test_the_culler_neither_takes_a_queued_kernel_nor_hangs_on_it(
    queue: Queue, start_server: StartServer, no_process_left: Any
) -> None:
    culling = ("--MappingKernelManager.cull_idle_timeout=1", "--MappingKernelManager.cull_interval=1")
    async with start_server(*culling) as server:
        opened, _ = await waiting_session(server, queue)
        other = json.loads((await server.ask("POST", "api/kernels", {"name": "python3"})).body)

        async def is_gone() -> bool:
            return await model(server, other["id"]) is None

        await until(is_gone, "the culler still culls")
        assert await model(server, opened["kernel"]["id"]) is not None
        assert await waits(server)
        assert server.stop() == 0


async def test_a_failed_start_is_shown_with_its_sentence_and_can_be_tried_again(
    queue: Queue, start_server: StartServer, no_process_left: Any
) -> None:
    queue.open()
    async with start_server() as server:
        mend = break_kernel(queue)
        opened = await server.open_session(queue.kernel, "a.ipynb")

        async def is_dead() -> Any:
            found = await model(server, opened["kernel"]["id"])
            return found if found is not None and found["execution_state"] == "dead" else None

        dead = await until(is_dead, "it is shown dead")
        assert "It ended with exit code 3" in dead["reason"]
        mend()
        assert (await server.ask("POST", f"api/kernels/{opened['kernel']['id']}/restart")).code == 200
        await until(lambda: _is_idle(server, opened["kernel"]["id"]), "a restart starts it anew")
        assert server.stop() == 0


def break_kernel(queue: Queue) -> Callable[[], Any]:
    """Make the kernel end at once; what is returned mends it."""
    file = Path(KernelSpecManager().get_kernel_spec(queue.kernel).resource_dir) / "kernel.json"
    before = file.read_text()
    content = json.loads(before)
    content["argv"] = ["/bin/sh", "-c", "exit 3"]
    content["metadata"]["kernel_provisioner"]["config"]["base_kernel"] = ""
    file.write_text(json.dumps(content))
    return lambda: file.write_text(before)
