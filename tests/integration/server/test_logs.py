"""The logs of a session's workers over a real server's REST interface: all, one, followed, gone on with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPRequest

from checks.parts.server import Server, running_server

from ..gangs import Offer, offer
from .conftest import sessions, shown, until

__all__ = ["offer"]  # a fixture

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Told:
    """One event of a followed log."""

    id: str
    text: str
    event: str = "message"


async def follow(server: Server, path: str, **headers: str) -> AsyncIterator[Told]:
    """The events of a followed log, until its end or until the caller has enough."""
    pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = HTTPRequest(
        f"{server._url}openai4s/{path}",
        headers={**server._headers, **names},
        streaming_callback=pieces.put_nowait,
        request_timeout=120,
    )
    answer = asyncio.ensure_future(AsyncHTTPClient().fetch(request))
    answer.add_done_callback(lambda _: pieces.put_nowait(None))
    rest = b""
    while (piece := await pieces.get()) is not None:
        *whole, rest = (rest + piece).split(b"\n\n")
        for each in whole:
            fields = dict(line.partition(": ")[::2] for line in each.decode().split("\n") if not line.startswith(":"))
            if fields:
                yield Told(fields.get("id", ""), fields.get("data", ""), fields.get("event", "message"))
    await answer


async def test_every_worker_s_log_is_shown_followed_and_ends_with_the_reason(
    offer: Offer, place: Any, work: Path, session_kernel: str, no_process_left: Any
) -> None:
    offer(3)
    async with running_server(work, place.root / "server.log") as server:
        opened = await server.started_session(session_kernel, "a.ipynb")
        here = f"sessions/{(await sessions(server))[0]['workload_id']}/log"

        async def all_have_logged() -> Any:
            found = await shown(server, here)
            return found if {line[:3] for line in found["lines"]} == {"[0]", "[1]", "[2]"} else None

        whole = await until(all_have_logged, "each worker's log is among the lines")
        assert (whole["ranks"], whole["end"]) == (3, None)
        assert "path" not in whole, "it lies beside the files of credentials"
        second = await shown(server, f"{here}?rank=1")
        assert second["lines"], "one of them alone, without its number"
        assert not any(line.startswith("[") for line in second["lines"])
        assert [f"[1] {line}" for line in second["lines"]] == [each for each in whole["lines"] if each[:3] == "[1]"]
        assert len((await shown(server, f"{here}?rank=2&lines=1"))["lines"]) == 1

        for query in ("rank=3", "rank=-1", "rank=x", "rank=", "rank=1.0", f"rank={'9' * 30}", "rank=%C2%B2"):
            answer = await server.ask("GET", f"openai4s/{here}?{query}")
            message = json.loads(answer.body)["message"]
            assert (answer.code, "it has 3, from 0 to 2" in message) == (400, True), (query, message)
        of_two = ("follow=1&after=1:1", "follow=1&rank=0&after=1:1,1,1")
        for query in ("after=", "follow=1&after=", "after=1:1,1,1", "follow=1&after=x", *of_two):
            answer = await server.ask("GET", f"openai4s/{here}?{query}")
            assert (answer.code, "after" in json.loads(answer.body)["message"]) == (400, True), query

        heard = [told async for told in anything(follow(server, f"{here}?follow=1&lines=2"), 2)]
        assert [told.text for told in heard] == whole["lines"][-2:]
        queries = ("lines=1", "lines=1&rank=1", f"after={heard[0].id}")
        asked = [follow(server, f"{here}?follow=1&{query}") for query in queries]
        asked.append(follow(server, f"{here}?follow=1", Last_Event_ID=heard[0].id))
        first = [await anext(each) for each in asked]
        assert (await server.ask("DELETE", f"api/sessions/{opened['id']}")).code == 204
        got = await asyncio.wait_for(asyncio.gather(*map(everything, first, asked)), 60)
        rest, of_one, after, again = got
        assert rest[-1].event == "end"
        assert "stopped at its owner's request" in rest[-1].text
        assert rest[0].text == heard[1].text
        assert [told.text for told in after] == [told.text for told in rest], "neither missed nor told twice"
        assert after == again
        assert [f"[1] {told.text}" for told in of_one[1:-1]] == [
            told.text for told in rest[1:-1] if told.text.startswith("[1]")
        ]
        assert len(rest) > 3, "what the workers wrote while they ended"
        ended = await shown(server, here)
        assert "stopped at its owner's request" in ended["end"]
        assert server.stop() == 0


async def anything(told: AsyncIterator[Told], most: int) -> AsyncIterator[Told]:
    """The first ones."""
    left = most
    async for each in told:
        yield each
        left -= 1
        if not left:
            return


async def everything(first: Told, told: AsyncIterator[Told]) -> list[Told]:
    return [first, *[each async for each in told]]
