"""Who may ask for what: every operation of rest-api.yml for a stranger, a wrong token, a cookie without the XSRF token,
an authorizer that denies, and the workloads of somebody else. Real server, authentication on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse

from checks.parts.rest_fuzz import DESCRIPTION
from checks.parts.server import Server, running_server

from .conftest import sessions, until

pytestmark = pytest.mark.anyio

DENIES = """
import os
from jupyter_server.auth import Authorizer

class Denies(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        return not (resource == "openai4s" and action == os.environ["DENIED"])
"""


def operations(workload_id: str = "0" * 32, task_id: str = "0" * 32) -> Iterator[tuple[str, str]]:
    """Method and path of every operation, with these ids."""
    for path, found in yaml.safe_load(DESCRIPTION.read_text(encoding="utf-8"))["paths"].items():
        for verb in found:
            yield verb.upper(), path.replace("{workload_id}", workload_id).replace("{task_id}", task_id).lstrip("/")


BODIES = {"extend": {"seconds": 60}, "tasks": {"argv": ["true"]}}


async def ask(server: Server, verb: str, path: str, headers: Mapping[str, str], body: Any = None) -> HTTPResponse:
    content = json.dumps(body or BODIES.get(path.rpartition("/")[2], {})) if verb == "POST" else None
    request = HTTPRequest(server._url + path, verb, dict(headers), content, request_timeout=60, follow_redirects=False)
    return await AsyncHTTPClient().fetch(request, raise_error=False)


async def answers(server: Server, headers: Mapping[str, str], verb: str | None = None) -> dict[tuple[str, str], int]:
    """What every operation answers to a caller with these headers."""
    asked = [each for each in operations() if verb in (None, each[0])]
    got = await asyncio.gather(*(ask(server, *each, headers) for each in asked))
    return {each: answer.code for each, answer in zip(asked, got, strict=True)}


async def cookies_of(server: Server, page: str) -> tuple[str, str]:
    """What a browser holds after it has seen this page: its cookies, and the XSRF token among them."""
    request = HTTPRequest(f"{server._url}{page}", follow_redirects=False)
    answer = await AsyncHTTPClient().fetch(request, raise_error=False)
    pairs = [line.partition(";")[0] for line in answer.headers.get_list("Set-Cookie")]
    xsrf = next((pair.partition("=")[2] for pair in pairs if pair.startswith("_xsrf=")), "")
    return "; ".join(pairs), xsrf


async def test_strangers_are_refused_everywhere_and_a_cookie_needs_the_xsrf_token(place: Any, work: Path) -> None:
    async with running_server(work, place.root / "server.log") as server:
        cookies, xsrf = await cookies_of(server, "login")
        assert xsrf, "so that it is not for the XSRF token that a stranger is refused"
        for headers in ({}, {"Authorization": "token wrong"}, {"Cookie": cookies, "X-XSRFToken": xsrf}):
            refused = await answers(server, headers)
            assert set(refused.values()) == {403}, refused
        cookies, xsrf = await cookies_of(server, f"tree?token={server._headers['Authorization'].split()[1]}")
        assert xsrf
        refused = await answers(server, {"Cookie": cookies}, "POST")
        assert set(refused.values()) == {403}, refused
        passed = await answers(server, {"Cookie": cookies, "X-XSRFToken": xsrf}, "POST")
        assert 403 not in passed.values(), passed
        body = json.loads((await ask(server, "GET", "openai4s/sessions", {})).body)
        assert set(body) == {"message", "reason"}
        assert not (place.root / "home/.local/state/openai4s").exists(), "whoever asks about nothing makes nothing"
        assert server.stop() == 0


@pytest.mark.parametrize(("denied", "verb"), [("read", "GET"), ("write", "POST")])
async def test_the_servers_authorizer_decides(
    place: Any, work: Path, monkeypatch: pytest.MonkeyPatch, denied: str, verb: str
) -> None:
    site = place.root / "site"
    site.mkdir()
    (site / "denies.py").write_text(DENIES)
    monkeypatch.setenv("DENIED", denied)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH", "")))))
    option = "--ServerApp.authorizer_class=denies.Denies"
    async with running_server(work, place.root / "server.log", option) as server:
        got = await answers(server, server._headers)
        for (method, path), code in got.items():
            assert (code == 403) == (method == verb), (method, path, code)
        assert server.stop() == 0


async def test_what_belongs_to_somebody_else_is_not_there(place: Any, work: Path, session_kernel: str) -> None:
    async with running_server(work, place.root / "server.log") as server:
        opened = await server.started_session(session_kernel, "a.ipynb")
        workload_id = (await sessions(server))[0]["workload_id"]
        answer = await ask(server, "POST", f"openai4s/sessions/{workload_id}/tasks", server._headers)
        task_id = json.loads(answer.body)["task_id"]
        give_away(place.root, workload_id, "somebody else")
        assert await sessions(server) == []
        for verb, path in operations(workload_id, task_id):
            if workload_id in path or task_id in path:
                answer = await ask(server, verb, path, server._headers)
                assert answer.code == 404, (verb, path, answer.body)
                assert b"somebody" not in answer.body
        give_away(place.root, workload_id, os.environ.get("USER", "") or _me())
        assert (await server.ask("DELETE", f"api/sessions/{opened['id']}")).code == 204
        assert server.stop() == 0


def give_away(root: Path, workload_id: str, owner: str) -> None:
    with contextlib.closing(sqlite3.connect(root / "home/.local/state/openai4s/state.db", timeout=20)) as connection:
        connection.execute("UPDATE workload SET owner = ? WHERE workload_id = ?", (owner, workload_id))
        connection.commit()


def _me() -> str:
    import getpass

    return getpass.getuser()


LONG = "x" * 5000
KERNEL = str(uuid.uuid4())
WRONG = {
    "not JSON": ("launches", b"{", "not JSON"),
    "not UTF-8": ("launches", b"\xff\xfe", "not JSON"),
    "a list": ("launches", b"[]", "not a JSON object"),
    "an unknown key": ("launches", {"kernel": "x"}, "'kernel' is not known here"),
    "no kernel id": ("launches", {"kernel_name": "python3"}, "kernel_id is missing"),
    "an id that is none": ("launches", {"kernel_id": "1", "kernel_name": "python3"}, "is not a UUID"),
    "an id that is too long": ("launches", {"kernel_id": LONG, "kernel_name": "python3"}, "longer than 36"),
    "no such kernelspec": ("launches", {"kernel_id": KERNEL, "kernel_name": "none"}, "no kernelspec 'none'"),
    "another kernel": ("launches", {"kernel_id": KERNEL, "kernel_name": "python3"}, "starts no session"),
    "a path with a NUL": ("launches", {"kernel_id": KERNEL, "kernel_name": "\0"}, "NUL"),
    "no such profile": ("launches", {"kernel_id": KERNEL, "kernel_name": "S", "profile": "p"}, "no profile 'p'"),
    "no such resource": ("launches", {"kernel_id": KERNEL, "kernel_name": "S", "resources": {"x": 1}}, "resources.x"),
    "text for a number": (
        "launches",
        {"kernel_id": KERNEL, "kernel_name": "S", "resources": {"cpus": "2"}},
        "resources.cpus = '2' is not a whole number",
    ),
    "less than nothing": ("launches", {"kernel_id": KERNEL, "kernel_name": "S", "resources": {"gpus": -1}}, "whole"),
    "too little": ("launches", {"kernel_id": KERNEL, "kernel_name": "S", "resources": {"cpus": 0}}, "at least 1"),
    "too much": ("launches", {"kernel_id": KERNEL, "kernel_name": "S", "resources": {"cpus": 2}}, "at most 1"),
}


async def test_every_wrong_parameter_is_named_in_one_sentence(
    place: Any, work: Path, session_kernel: str, no_process_left: Any
) -> None:
    async with running_server(work, place.root / "server.log") as server:
        for what, (path, body, expected) in WRONG.items():
            text = body if isinstance(body, bytes) else json.dumps(body).replace('"S"', f'"{session_kernel}"').encode()
            request = HTTPRequest(f"{server._url}openai4s/{path}", "POST", server._headers, text)
            answer = await AsyncHTTPClient().fetch(request, raise_error=False)
            message = json.loads(answer.body)["message"]
            assert (answer.code, expected in message) == (400, True), (what, message)
            assert len(message) < 300
        await server.started_session(session_kernel, "a.ipynb")
        here = f"openai4s/sessions/{(await sessions(server))[0]['workload_id']}"
        for query in ("lines=0", "lines=x", "lines=99999", f"lines={LONG}", "follow=2", "follow=yes"):
            answer = await server.ask("GET", f"{here}/log?{query}")
            assert answer.code == 400, query
            assert query.partition("=")[0] in json.loads(answer.body)["message"]
        for body in ({}, {"seconds": 0}, {"seconds": "1"}, {"seconds": True}, {"seconds": 1e3}, {"seconds": 10**12}):
            answer = await server.ask("POST", f"{here}/extend", body)
            assert answer.code == 400, body
            assert "seconds" in json.loads(answer.body)["message"]
        for body in ({}, {"argv": []}, {"argv": "true"}, {"argv": [1]}, {"argv": ["x"] * 5000}):
            assert (await server.ask("POST", f"{here}/tasks", body)).code == 400, body
        assert (await server.ask("POST", f"{here}/tasks", {"argv": ["\0"]})).code == 409
        for path in (f"sessions/{LONG}", "sessions/..%2f..%2fetc", "sessions/%00", f"batches/{LONG}", "nothing"):
            assert (await server.ask("GET", f"openai4s/{path}")).code == 404, path

        async def is_ready() -> bool:
            return bool((await sessions(server))[0]["state"] == "ready")

        await until(is_ready, "the session has seen nothing of it")
        assert server.stop() == 0
