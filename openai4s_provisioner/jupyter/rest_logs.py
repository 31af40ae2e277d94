"""REST: what a session's workers logged, or what a command printed; its last lines, or followed as an event stream.

A follower is a request that stays open; there is a bound on how many may. Every line that it gets comes with the place
behind it, and a stream that broke is gone on with from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jupyter_server.auth.decorator import authorized
from tornado import web
from tornado.iostream import StreamClosedError

from ..orchestration.models import Kind
from ..person_desk import View
from ..workload_logs import LogLine, LogReader, Place
from .rest_base import SessionsHandler, Wrong, invalid
from .session_json import end_of

MOST_LINES = 10_000
MOST_FOLLOWERS = 16
EVERY_RANK = "all"
_LOOK_S = 0.5
_QUIET_S = 15.0  # then a comment tells proxies that the stream lives


class SessionLog(SessionsHandler):
    kind = Kind.SESSION
    _followers = 0  # of the whole server
    _gone = False

    @web.authenticated
    @authorized
    async def get(self, workload_id: str) -> None:
        lines = self.whole_argument("lines", 200, 1, MOST_LINES)
        follow = self.whole_argument("follow", 0, 0, 1)
        view = await self._view(workload_id)
        ranks = self._ranks(view)
        after = self._after(follow, len(ranks))
        reader = LogReader(self.door.settings, view.seen.now.workload, ranks, after)
        try:
            if follow:
                await self._follow_one(view, reader, lines if after is None else None)
            else:
                await self._tell(view, reader, lines)
        finally:
            reader.close()

    def on_connection_close(self) -> None:
        self._gone = True
        super().on_connection_close()

    # -- what is asked ---------------------------------------------------------------------------------------------

    def _ranks(self, view: View) -> Sequence[int]:
        """Whose logs. A session has as many workers as its allocation has ranks."""
        asked = self.get_query_argument("rank", EVERY_RANK)
        count = view.seen.now.allocation.nodes
        if asked == EVERY_RANK:
            return range(count)
        if not (asked.isascii() and asked.isdigit() and len(asked) < 9 and int(asked) < count):
            which = "it has one, 0" if count == 1 else f"it has {count}, from 0 to {count - 1}"
            raise invalid(f"rank = {asked[:32]!r} is no worker of this session: {which}. Without it, all are shown.")
        return (int(asked),)

    def _after(self, follow: int, logs: int) -> Place | None:
        """Where a stream broke: as a query, or as browsers send it by themselves."""
        text = self.get_query_argument("after", None)
        if text is not None and not follow:
            raise invalid("after is only known with follow = 1: it is where a stream is gone on with.")
        if text is None:
            text = self.request.headers.get("Last-Event-ID", "") if follow else ""
            if not text:
                return None
        place = Place.parse(text)
        if place is None or len(place.positions) != logs:
            raise invalid(f"after = {text[:32]!r} is no id of a line of this log. Send the last id that came, or none.")
        return place

    # -- what is answered ------------------------------------------------------------------------------------------

    async def _tell(self, view: View, reader: LogReader, lines: int) -> None:
        found = await asyncio.to_thread(reader.read, view.seen.now.allocation, True)  # an unfinished line as well
        self.answer(
            {
                "lines": [each.text for each in found[-lines:]],
                "ranks": view.seen.now.allocation.nodes,
                "end": end_of(view, self.shorten),
            }
        )

    async def _follow_one(self, view: View, reader: LogReader, lines: int | None) -> None:
        """`lines`: how many of the last ones come first; None for all that came since."""
        if SessionLog._followers >= MOST_FOLLOWERS:
            raise Wrong(429, f"{MOST_FOLLOWERS} logs are followed already. Close one.", "QUOTA_EXCEEDED")
        SessionLog._followers += 1
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Accel-Buffering", "no")
        try:
            found = await self._read(view, reader)
            await self._send(found if lines is None else found[-lines:])
            await self._go_on(view, reader)
        except StreamClosedError:
            return
        finally:
            SessionLog._followers -= 1

    async def _go_on(self, view: View, reader: LogReader) -> None:
        quiet_s = 0.0
        while not (self._gone or view.is_over):
            await asyncio.sleep(_LOOK_S)
            view = await self._view(view.seen.now.workload.workload_id)  # first: what came before its end is read below
            found = await self._read(view, reader)
            quiet_s = 0.0 if found else quiet_s + _LOOK_S
            if quiet_s >= _QUIET_S:
                quiet_s = 0.0
                self.write(": \n\n")
            await self._send(found)
        while not self._gone and (rest := await self._read(view, reader)):
            await self._send(rest)
        if not self._gone:
            self.write(f"event: end\ndata: {_one_line(end_of(view, self.shorten) or '')}\n\n")
            await self.finish()

    async def _view(self, workload_id: str) -> View:
        return await self.ask(lambda desk: desk.view(workload_id, self.kind))

    async def _read(self, view: View, reader: LogReader) -> list[LogLine]:
        return await asyncio.to_thread(reader.read, view.seen.now.allocation, view.is_over)

    async def _send(self, lines: Sequence[LogLine]) -> None:
        """One event for each line."""
        for line in lines:
            self.write(f"id: {line.place}\ndata: {_one_line(line.text)}\n\n")
        await self.flush()


class BatchLog(SessionLog):
    kind = Kind.BATCH

    def _ranks(self, view: View) -> Sequence[int]:
        """A command prints into one log, wherever it runs."""
        if self.get_query_argument("rank", EVERY_RANK) != EVERY_RANK:
            raise invalid("rank is not known here: a command has one output. Leave it out.")
        return (0,)


def _one_line(text: str) -> str:
    """A carriage return or a new line would end an event's field early."""
    return text.replace("\r", "").replace("\n", " ")
