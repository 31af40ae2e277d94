"""What a person may do with a session over the REST interface of a real server, and what it does."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPRequest

from checks.parts.server import Server

from .conftest import WAITING, Queue, StartServer, sessions, shown, until, waits

pytestmark = pytest.mark.anyio
NOTEBOOK = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'


async def act(server: Server, path: str, body: Any = None, expected: int = 200) -> Any:
    answer = await server.ask("POST", f"openai4s/{path}", body)
    assert answer.code == expected, answer.body
    return json.loads(answer.body)


async def newest(server: Server) -> dict[str, Any]:
    """A kernel is there at once; its session once it was admitted."""

    async def look() -> list[dict[str, Any]]:
        return await sessions(server)

    found: dict[str, Any] = (await until(look, "a session is there"))[0]
    return found


async def in_state(server: Server, workload_id: str, state: str) -> Any:
    async def look() -> Any:
        found = await shown(server, f"sessions/{workload_id}")
        return found if found["state"] == state else None

    return await until(look, f"the session is {state}")


async def test_chosen_resources_reach_the_queue_and_are_used_again(
    queue: Queue, start_server: StartServer, work: Path, no_process_left: Any
) -> None:
    (work / "a.ipynb").write_text(NOTEBOOK)
    async with start_server() as server:
        profile, _ = (await shown(server, "profiles"))["profiles"]
        assert profile["limits"] == {"cpus": 2, "memory_mb": 8000, "gpus": 1, "walltime_s": 3600, "nodes": 1}
        kernel_id = str(uuid.uuid4())
        chosen = {"kernel_id": kernel_id, "profile": "waits", "kernel_name": queue.kernel}
        too_much = await act(server, "launches", chosen | {"resources": {"memory_mb": 8001}}, 400)
        assert "memory_mb = 8001 is more than profile 'waits' allows: ask for at most 8000 MB" in too_much["message"]
        await act(server, "launches", chosen | {"resources": {"memory_mb": 8000, "walltime_s": 600}}, 201)
        body = {"path": "a.ipynb", "name": "a.ipynb", "type": "notebook"}
        kernel = {"id": kernel_id, "name": queue.kernel}
        opened = await server.ask("POST", "api/sessions", body | {"kernel": kernel})
        assert json.loads(opened.body)["kernel"]["id"] == kernel_id
        await until(lambda: waits(server), "it is in the queue")
        (submitted,) = queue.submissions
        assert submitted.partition(" ")[2] == "cpus=2 memory_mb=8000 gpus=0 walltime_s=600"
        session = await newest(server)
        waiting = session["waiting"]
        assert (waiting["position"], waiting["sentence"]) == (1, WAITING)
        assert session["created_at"] < waiting["estimated_start"]
        assert waiting["estimate_as_of"] >= session["created_at"]
        assert session["detail"] == "(no room)"
        assert "position 1" in session["sentence"], "the badge says so too"
        assert session["resources"] == {"cpus": 2, "memory_mb": 8000, "gpus": 0, "nodes": 1}

        stopped = await act(server, f"sessions/{session['workload_id']}/stop", expected=202)
        assert stopped["state"] in ("ending", "ended")
        await in_state(server, session["workload_id"], "ended")
        again = await act(server, f"sessions/{session['workload_id']}/start-again", expected=202)
        assert again["path"] == "a.ipynb"
        (listed,) = json.loads((await server.ask("GET", "api/sessions")).body)
        assert listed["kernel"]["id"] == again["kernel_id"], "the notebook's session has the new kernel"
        await until(lambda: waits(server), "it is in the queue")
        assert queue.submissions[1].partition(" ")[2] == submitted.partition(" ")[2], "with the same choice"
        refused = await act(server, f"sessions/{session['workload_id']}/stop", expected=409)
        assert refused["reason"] == "USER_CANCELLED", "it is over"
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("Console 1", "console", "There is no notebook Console 1 any more, or there never was one."),
        ("gone.ipynb", "notebook", "There is no notebook gone.ipynb any more"),
        ("notes.txt", "file", "notes.txt is not a notebook."),
        (None, None, "belonged to no notebook of this server."),
    ],
)
async def test_what_no_notebook_would_be_connected_to_is_not_started_again(
    queue: Queue,
    start_server: StartServer,
    work: Path,
    no_process_left: Any,
    name: str | None,
    kind: str | None,
    told: str,
) -> None:
    (work / "notes.txt").touch()
    async with start_server() as server:
        if name is None:
            await server.ask("POST", "api/kernels", {"name": queue.kernel})
        else:
            body = {"path": f"{name}-uuid", "name": name, "type": kind, "kernel": {"name": queue.kernel}}
            await server.ask("POST", "api/sessions", body)
        await until(lambda: waits(server), "it is in the queue")
        workload_id = (await newest(server))["workload_id"]
        await act(server, f"sessions/{workload_id}/stop", expected=202)
        await in_state(server, workload_id, "ended")
        refused = await act(server, f"sessions/{workload_id}/start-again", expected=409)
        assert told in refused["message"]
        assert refused["message"].endswith("Open a new notebook or console with the same kernel instead.")
        assert len(await sessions(server)) == len(queue.submissions) == 1
        assert server.stop() == 0


async def test_keep_extend_tasks_and_logs(queue: Queue, start_server: StartServer, no_process_left: Any) -> None:
    queue.open()
    async with start_server() as server:
        opened = await server.open_session(queue.kernel, "a.ipynb")
        workload_id = (await newest(server))["workload_id"]
        await in_state(server, workload_id, "ready")
        here = f"sessions/{workload_id}"

        async def lease_end() -> Any:
            return (await shown(server, here))["lease_ends_at"]

        before = await until(lease_end, "its worker has told that it is idle")
        assert (await act(server, f"{here}/keep"))["lease_ends_at"] > before
        running = await shown(server, here)
        assert running["can_extend"]
        assert running["most_extension_s"] == 3600, "its profile allows two hours, and it has one"
        too_long = await act(server, f"{here}/extend", {"seconds": running["most_extension_s"] + 120}, 409)
        assert (too_long["reason"], "lets nobody run for longer" in too_long["message"]) == ("POLICY_REJECTED", True)
        later = await act(server, f"{here}/extend", {"seconds": 600})
        assert later["walltime_ends_at"] > running["walltime_ends_at"]
        assert later["most_extension_s"] == 3000
        last = await act(server, f"{here}/extend", {"seconds": later["most_extension_s"]})
        assert (last["can_extend"], last["most_extension_s"]) == (False, 0), "as far as its profile allows"

        task = await act(server, f"{here}/tasks", {"argv": ["sh", "-c", "exit 5"]}, 201)

        async def ended() -> Any:
            (found,) = (await shown(server, f"{here}/tasks"))["tasks"]
            return found if found["state"] == "ended" else None

        assert (await until(ended, "the task ends"))["exit_code"] == 5
        await act(server, f"tasks/{task['task_id']}/cancel", expected=409)

        log = await shown(server, f"{here}/log?lines=3")
        assert 1 <= len(log["lines"]) <= 3
        assert log.keys() == {"lines", "ranks", "end"}, "and not where it lies: beside the credentials"
        following = asyncio.ensure_future(followed(server, f"{here}/log?follow=1"))
        assert (await server.ask("DELETE", f"api/sessions/{opened['id']}")).code == 204
        *_, last, _ = (await asyncio.wait_for(following, 40)).split("\n\n")
        assert last.startswith("event: end\ndata: The session was stopped at its owner's request."), "it ends with it"
        await act(server, f"{here}/keep", expected=409)
        await act(server, f"{here}/tasks", {"argv": ["true"]}, 409)
        assert server.stop() == 0


async def test_a_session_whose_time_is_fixed_is_not_extended(
    queue: Queue, start_server: StartServer, no_process_left: Any
) -> None:
    queue.open()
    async with start_server() as server:
        await server.started_session(queue.kernel.replace("waits", "fixed"), "a.ipynb")
        session = await newest(server)
        assert (session["profile"], session["can_extend"], session["most_extension_s"]) == ("fixed", False, 0)
        assert session["walltime_ends_at"] is not None
        refused = await act(server, f"sessions/{session['workload_id']}/extend", {"seconds": 60}, 409)
        assert "cannot be extended here" in refused["message"]
        assert server.stop() == 0


async def followed(server: Server, path: str) -> str:
    """The whole of an event stream."""
    pieces: list[bytes] = []
    request = HTTPRequest(
        f"{server._url}openai4s/{path}", headers=server._headers, streaming_callback=pieces.append, request_timeout=60
    )
    answer = await AsyncHTTPClient().fetch(request)
    assert answer.headers["Content-Type"] == "text/event-stream"
    return b"".join(pieces).decode()


async def test_a_session_is_stopped_by_name_while_it_runs_and_its_kernel_is_shown_dead(
    queue: Queue, start_server: StartServer, work: Path, no_process_left: Any
) -> None:
    (work / "a.ipynb").write_text(NOTEBOOK)
    queue.open()
    async with start_server() as server:
        opened = await server.open_session(queue.kernel, "a.ipynb")
        workload_id = (await newest(server))["workload_id"]
        await in_state(server, workload_id, "ready")
        await act(server, f"sessions/{workload_id}/stop", expected=202)
        ended = await in_state(server, workload_id, "ended")
        assert (ended["reason"]["code"], ended["reason"]["remedy"]) == (
            "USER_CANCELLED",
            "Start the kernel again when you need it.",
        )

        async def is_gone() -> bool:
            return (await server.ask("GET", f"api/kernels/{opened['kernel']['id']}")).code == 404

        await until(is_gone, "Jupyter's restarter gives the kernel up")
        wrong = await act(server, f"sessions/{workload_id}/start-again", {"make_session": "no"}, 400)
        assert "make_session" in wrong["message"]
        again = await act(server, f"sessions/{workload_id}/start-again", {"make_session": False}, 202)
        assert json.loads((await server.ask("GET", "api/sessions")).body) == [], "a page makes its own"
        assert (await server.ask("GET", f"api/kernels/{again['kernel_id']}")).code == 200

        async def is_ready() -> bool:
            return bool((await newest(server))["kernels"][0]["kernel_id"] == again["kernel_id"])

        await until(is_ready, "the new session is there")
        assert server.stop() == 0


async def test_what_is_over_is_started_again_before_jupyter_has_noticed_its_end(
    queue: Queue, start_server: StartServer, work: Path, no_process_left: Any
) -> None:
    queue.open()
    (work / "a.ipynb").write_text(NOTEBOOK)
    async with start_server("--AsyncIOLoopKernelRestarter.time_to_dead=600") as server:
        opened = await server.open_session(queue.kernel, "a.ipynb")
        workload_id = (await newest(server))["workload_id"]
        await in_state(server, workload_id, "ready")
        await act(server, f"sessions/{workload_id}/stop", expected=202)
        await in_state(server, workload_id, "ended")
        (before,) = json.loads((await server.ask("GET", "api/sessions")).body)
        assert before["kernel"]["execution_state"] != "dead", "Jupyter takes the kernel for living"
        again = await act(server, f"sessions/{workload_id}/start-again", expected=202)
        (after,) = json.loads((await server.ask("GET", "api/sessions")).body)
        assert (after["id"], after["kernel"]["id"]) == (before["id"], again["kernel_id"])

        async def is_there() -> bool:
            return bool((await newest(server))["kernels"][0]["kernel_id"] == again["kernel_id"])

        await until(is_there, "the new session is there")
        refused = await act(server, f"sessions/{workload_id}/start-again", expected=409)
        assert "Another kernel runs for a.ipynb" in refused["message"], "one that lives is not taken away"
        assert (await server.ask("GET", f"api/kernels/{opened['kernel']['id']}")).code == 404
        assert server.stop() == 0
