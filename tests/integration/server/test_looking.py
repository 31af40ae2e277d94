"""The REST interface of a real server: what it shows of sessions and profiles, and to whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checks.parts.server import running_server

from .conftest import shown

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
        (session,) = (await shown(server, "sessions"))["sessions"]
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
