"""REST: the log of a session's worker, or what a command printed; its last lines, or followed as an event stream.

A follower is a request that stays open; there is a bound on how many may.
"""

from __future__ import annotations

import asyncio

from jupyter_server.auth.decorator import authorized
from tornado import web
from tornado.iostream import StreamClosedError

from ..orchestration.models import Kind
from ..workload_logs import LogPiece
from .rest_base import SessionsHandler, Wrong

MOST_LINES = 10_000
MOST_FOLLOWERS = 16
_LOOK_S = 0.5
_QUIET_S = 15.0  # then a comment tells proxies that the stream lives


class SessionLog(SessionsHandler):
    kind = Kind.SESSION
    _followers = 0  # of the whole server

    @web.authenticated
    @authorized
    async def get(self, workload_id: str) -> None:
        lines = self.whole_argument("lines", 200, 1, MOST_LINES)
        follow = self.whole_argument("follow", 0, 0, 1)
        piece, _ = await self._piece(workload_id, -1)
        if not follow:
            self.answer({"lines": piece.text.splitlines()[-lines:], "path": piece.path})
            return
        *whole, rest = piece.text.split("\n")
        if SessionLog._followers >= MOST_FOLLOWERS:
            raise Wrong(429, f"{MOST_FOLLOWERS} logs are followed already. Close one.", "QUOTA_EXCEEDED")
        SessionLog._followers += 1
        self._gone = False
        try:
            await self._follow(workload_id, whole[-lines:], rest, piece.position)
        except StreamClosedError:
            return
        finally:
            SessionLog._followers -= 1

    def on_connection_close(self) -> None:
        self._gone = True
        super().on_connection_close()

    async def _follow(self, workload_id: str, lines: list[str], rest: str, position: int) -> None:
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Accel-Buffering", "no")
        await self._send(lines)
        quiet_s, is_over = 0.0, False
        while not (is_over or self._gone):
            await asyncio.sleep(_LOOK_S)
            piece, is_over = await self._piece(workload_id, position)
            position = piece.position
            *whole, rest = (rest + piece.text).split("\n")
            if is_over and rest:
                whole.append(rest)
            quiet_s = 0.0 if whole else quiet_s + _LOOK_S
            if quiet_s >= _QUIET_S:
                quiet_s = 0.0
                self.write(": \n\n")
            await self._send(whole)
        if not self._gone:
            self.write("event: end\ndata:\n\n")
            await self.finish()

    async def _piece(self, workload_id: str, position: int) -> tuple[LogPiece, bool]:
        return await self.ask(lambda desk: desk.log(workload_id, self.kind, position))

    async def _send(self, lines: list[str]) -> None:
        """One event for each line. A carriage return would end it early."""
        for line in lines:
            self.write(f"data: {line.replace(chr(13), '')}\n\n")
        await self.flush()


class BatchLog(SessionLog):
    kind = Kind.BATCH
