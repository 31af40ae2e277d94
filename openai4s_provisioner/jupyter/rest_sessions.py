"""REST: sessions, one session, and what a person may do with it. Described in rest-api.yml."""

from __future__ import annotations

import time

from jupyter_server.auth.decorator import authorized
from tornado import web

from ..orchestration.models import Kind
from ..person_desk import Overview, PersonDesk, View
from .rest_base import SessionsHandler
from .session_json import batch_json, moment, session_json


class SessionsList(SessionsHandler):
    """Everything at once: what the page re-reads after each event."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        found, offline = Overview(), None
        if self.door.has_state:
            try:
                found = await self.ask(PersonDesk.overview)
                offline = silence(found)
            except web.HTTPError as error:
                offline = error.log_message
        else:
            offline = self.door.trouble()
        now = time.time()
        sessions = [session_json(each, now, self.shorten) for each in found.views if each.kind is Kind.SESSION]
        batches = [batch_json(each, now, self.shorten) for each in found.views if each.kind is Kind.BATCH]
        self.answer({"sessions": sessions, "batches": batches, "as_of": moment(now), "offline": offline})


class OneSession(SessionsHandler):
    @web.authenticated
    @authorized
    async def get(self, workload_id: str) -> None:
        async def look(desk: PersonDesk) -> View:
            return await desk.view(workload_id, Kind.SESSION)

        self.answer(session_json(await self.ask(look), time.time(), self.shorten))


def silence(found: Overview) -> str | None:
    if not found.silent:
        return None
    names = ", ".join(found.silent)
    return f"The place where sessions run ({names}) does not answer. What is shown is what was last known."
