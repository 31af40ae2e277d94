"""What a real server shows of sessions and profiles, and what it tells whoever subscribes to its events."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from checks.parts.server import running_server

from .conftest import DEADLINE_S, shown, until

pytestmark = pytest.mark.anyio


async def test_a_session_is_shown_with_its_conditions_and_its_notebook(
    place: Any, work: Path, session_kernel: str, no_process_left: Any
) -> None:
    async with running_server(work, place.root / "server.log") as server:
        before = place.everything()
        empty = await shown(server, "sessions")
        assert (empty["sessions"], empty["batches"], empty["offline"]) == ([], [], None)
        (profile,) = (await shown(server, "profiles"))["profiles"]
        assert (profile["name"], profile["kernelspecs"]) == ("default", [session_kernel])
        assert place.everything() == before, "looking makes nothing"

        opened = await server.open_session(session_kernel, "sub/a.ipynb")
        async with server.channels(opened["kernel"]["id"]) as channels:
            assert (await channels.execute("1+1"))["status"] == "ok"

        async def is_idle() -> Any:  # its worker tells that a moment after the answer
            (session,) = (await shown(server, "sessions"))["sessions"]
            return session if session["lease_ends_at"] else None

        session = await until(is_idle, "the clock of its lease runs")
        assert session["state"] == "ready"
        assert [each["met"] for each in session["conditions"]] == [True] * 4
        (kernel,) = session["kernels"]
        assert kernel["kernel_id"] == opened["kernel"]["id"]
        assert kernel["path"] == "sub/a.ipynb"
        assert kernel["lease"]["can_be_kept"]
        assert session["lease_ends_at"] == kernel["lease"]["idle_ends_at"]
        assert await shown(server, f"sessions/{session['workload_id']}")

        assert (await server.ask("DELETE", f"api/sessions/{opened['id']}")).code == 204
        (ended,) = (await shown(server, "sessions"))["sessions"]
        assert ended["kernels"][0]["kernel_id"] == kernel["kernel_id"]
        assert server.stop() == 0


async def test_whoever_subscribes_hears_how_a_session_starts_and_ends(
    place: Any, work: Path, session_kernel: str, no_process_left: Any
) -> None:
    async with running_server(work, place.root / "server.log") as server:
        url = f"{server._url.replace('http', 'ws', 1)}api/events/subscribe"
        socket = await websocket_connect(HTTPRequest(url, headers=server._headers))
        opened = await server.started_session(session_kernel, "a.ipynb")
        assert (await server.ask("DELETE", f"api/sessions/{opened['id']}")).code == 204
        heard: list[dict[str, Any]] = []
        while not heard or heard[-1]["phase"] not in ("COMPLETED", "CANCELLED"):
            raw = await asyncio.wait_for(socket.read_message(), DEADLINE_S)
            event = json.loads(raw or "{}")
            if event["schema_id"] == "https://events.openai4s.dev/session/v1":
                heard.append(event)
        socket.close()
        assert {event["kernel_id"] for event in heard} == {opened["kernel"]["id"]}
        met = [event["met"] for event in heard]
        assert met[: met.index(4) + 1] == sorted(met[: met.index(4) + 1]), "condition after condition"
        assert 4 in met
        assert heard[-1]["reason"] == "USER_CANCELLED"
        assert server.stop() == 0
