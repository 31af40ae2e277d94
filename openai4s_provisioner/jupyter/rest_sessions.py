"""REST: sessions and commands, all or one, and what a person may wish for them. Described in rest-api.yml."""

from __future__ import annotations

import time

from jupyter_server.auth.decorator import authorized
from tornado import web

from ..orchestration.errors import ProvisionerError
from ..orchestration.models import Kind
from ..person_desk import Overview, PersonDesk, View
from .rest_base import SessionsHandler, Wrong, told, whole_of
from .session_json import batch_json, moment, session_json
from .start_json import start_json, without_sessions

_MOST_EXTENDED_S = 366 * 24 * 3600


class SessionsList(SessionsHandler):
    """Everything at once: what the page re-reads after each event."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        starts = self.door.starts()  # first: one that becomes a session meanwhile is found there as well
        found, offline = Overview(), None
        try:
            if self.door.has_state:
                found = await self.ask(PersonDesk.overview)
                offline = _silence(found)
                if not self.door.is_driving and any(not each.is_over for each in found.views):
                    await self._look_after()
            else:
                offline = await self.door.trouble()
        except Wrong as error:
            offline = error.message
        now = time.time()
        sessions = [session_json(each, now, self.shorten) for each in found.views if each.kind is Kind.SESSION]
        batches = [batch_json(each, now, self.shorten) for each in found.views if each.kind is Kind.BATCH]
        shown = {
            "sessions": sessions,
            "starts": [start_json(each, now, self.shorten) for each in without_sessions(starts, found.views)],
            "batches": batches,
        }
        self.answer({**shown, "as_of": moment(now), "offline": offline})

    async def _look_after(self) -> None:
        """Somebody has to: a command may have come from a terminal that is closed, after this server had started."""
        try:
            await self.door.resume()
        except ProvisionerError as error:
            raise told(error) from error


class BatchesList(SessionsHandler):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        found = await self.ask(PersonDesk.overview) if self.door.has_state else Overview()
        now = time.time()
        batches = [batch_json(each, now, self.shorten) for each in found.views if each.kind is Kind.BATCH]
        self.answer({"batches": batches, "as_of": moment(now)})


class OneWorkload(SessionsHandler):
    """Base of those about one session or one command."""

    kind = Kind.SESSION

    def answer_view(self, view: View, status: int = 200) -> None:
        show = session_json if self.kind is Kind.SESSION else batch_json
        self.answer(show(view, time.time(), self.shorten), status)


class OneSession(OneWorkload):
    @web.authenticated
    @authorized
    async def get(self, workload_id: str) -> None:
        self.answer_view(await self.ask(lambda desk: desk.view(workload_id, self.kind)))


class OneBatch(OneSession):
    kind = Kind.BATCH


class StopSession(OneWorkload):
    @web.authenticated
    @authorized
    async def post(self, workload_id: str) -> None:
        self.json_object()
        view = await self.ask(lambda desk: desk.stop(workload_id, self.kind, self.actor))
        await self.door.resume()  # somebody has to carry it out
        self.answer_view(view, 202)


class StopBatch(StopSession):
    kind = Kind.BATCH


class KeepSession(OneWorkload):
    @web.authenticated
    @authorized
    async def post(self, workload_id: str) -> None:
        self.json_object()
        self.answer_view(await self.ask(lambda desk: desk.keep(workload_id, self.actor)))


class ExtendSession(OneWorkload):
    @web.authenticated
    @authorized
    async def post(self, workload_id: str) -> None:
        seconds = whole_of(self.json_object("seconds"), "seconds", 1, _MOST_EXTENDED_S)
        self.answer_view(await self.ask(lambda desk: desk.extend(workload_id, seconds, self.actor)))


def _silence(found: Overview) -> str | None:
    if not found.silent:
        return None
    names = ", ".join(found.silent)
    return f"The place where sessions run ({names}) does not answer. What is shown is what was last known."
