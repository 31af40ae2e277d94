"""From its first moment on a start is told: it is checked, then a session, or refused with a sentence."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from checks.parts.server import Server
from openai4s_provisioner.starts import CHECKING

from .conftest import DEADLINE_S, Queue, StartServer, sessions, shown, until, waits

pytestmark = pytest.mark.anyio


async def starts(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await shown(server, "sessions"))["starts"]
    return found


async def refused(server: Server) -> list[dict[str, Any]]:
    return [each for each in await starts(server) if each["state"] == "refused"]


async def test_a_start_is_shown_while_it_is_checked_and_then_as_the_session_that_it_has_become(
    queue: Queue, start_server: StartServer, place: Any, no_process_left: Any
) -> None:
    (queue.folder / "hold").touch()
    async with start_server() as server:
        assert await starts(server) == []
        opened = await server.open_session(queue.kernel, "sub/a.ipynb")
        (start,) = await until(lambda: starts(server), "the start is there")
        assert start["kernel_id"] == opened["kernel"]["id"]
        assert (start["state"], start["sentence"], start["reason"]) == ("checking", CHECKING, None)
        assert (start["path"], start["kernel_name"]) == ("sub/a.ipynb", queue.kernel)
        assert (start["profile"], start["profile_display_name"]) == ("waits", "queued session")
        assert await sessions(server) == []
        assert not (place.root / "home/.local/state/openai4s/state.db").exists(), "nothing is written before admission"
        (queue.folder / "hold").unlink()
        await until(lambda: waits(server), "it is a session, and in the queue")
        everything = await shown(server, "sessions")
        assert everything["starts"] == []
        assert [each["kernel_id"] for each in everything["sessions"][0]["kernels"]] == [opened["kernel"]["id"]]
        assert server.stop() == 0


async def test_a_refused_start_is_told_with_its_sentence_until_its_kernel_is_gone(
    queue: Queue, start_server: StartServer, no_process_left: Any
) -> None:
    (queue.folder / "refuse").touch()
    async with start_server() as server:
        url = f"{server._url.replace('http', 'ws', 1)}api/events/subscribe"
        socket = await websocket_connect(HTTPRequest(url, headers=server._headers))
        opened = await server.open_session(queue.kernel, "a.ipynb")
        (start,) = await until(lambda: refused(server), "the refusal is told")
        assert "This place has an open door." in start["sentence"]
        assert start["reason"]["code"] == "ISOLATION_UNVERIFIED"
        assert start["reason"]["sentence"] == start["sentence"]
        heard = [await event_of(socket, opened["kernel"]["id"]) for _ in range(2)]
        assert [each["reason"] for each in heard] == [None, "ISOLATION_UNVERIFIED"]
        assert [each["workload_id"] for each in heard] == ["", ""]
        assert heard[1]["sentence"] == start["sentence"]
        socket.close()

        (queue.folder / "refuse").unlink()
        queue.open()
        kernel = f"api/kernels/{opened['kernel']['id']}"
        assert (await server.ask("POST", f"{kernel}/restart")).code == 200, "tried again under the same id"
        await until(lambda: sessions(server), "it is a session now")
        assert await starts(server) == []

        (queue.folder / "refuse").touch()
        other = await server.open_session(queue.kernel, "b.ipynb")
        await until(lambda: refused(server), "the refusal is told")
        assert (await server.ask("DELETE", f"api/sessions/{other['id']}")).code == 204
        assert await starts(server) == []
        assert server.stop() == 0


async def event_of(socket: Any, kernel_id: str) -> dict[str, Any]:
    """The next one of this kernel."""
    while True:
        event: dict[str, Any] = json.loads(await asyncio.wait_for(socket.read_message(), DEADLINE_S) or "{}")
        if event["schema_id"] == "https://events.openai4s.dev/session/v1" and event["kernel_id"] == kernel_id:
            return event


async def test_a_start_that_is_given_up_while_it_is_checked_leaves_nothing(
    queue: Queue, start_server: StartServer, no_process_left: Any
) -> None:
    (queue.folder / "hold").touch()
    async with start_server() as server:
        opened = await server.open_session(queue.kernel, "a.ipynb")
        await until(lambda: starts(server), "the start is there")
        assert (await server.ask("DELETE", f"api/sessions/{opened['id']}")).code == 204
        found = await shown(server, "sessions")
        assert (found["starts"], found["sessions"]) == ([], [])
        (queue.folder / "hold").unlink()
        assert server.stop() == 0


async def test_a_kernelspec_that_cannot_be_started_is_told_too(
    queue: Queue, start_server: StartServer, no_process_left: Any
) -> None:
    data = Path(queue.folder).parent / "data" / "kernels" / queue.kernel / "kernel.json"
    content = json.loads(data.read_text())
    content["metadata"]["kernel_provisioner"]["config"]["base_kernel"] = "none-such"
    data.write_text(json.dumps(content))
    async with start_server() as server:
        await server.open_session(queue.kernel, "a.ipynb")
        (start,) = await until(lambda: refused(server), "the refusal is told")
        assert "none-such" in start["sentence"]
        assert server.stop() == 0
