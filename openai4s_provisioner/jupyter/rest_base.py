"""What every handler of our REST interface shares: who may, what a body may hold, and how an error is told.

Errors are JSON, ``{"message", "reason"}``: a sentence for a person and a code for a program. Authentication, the
authorizer and XSRF are the server's own; nothing here weakens them.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import re
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web

from ..orchestration.errors import ConfigError, NotFound, Refused, SessionEnded, StateError
from ..person_desk import PersonDesk
from .control_door import ControlDoor
from .session_paths import shortened

AUTH_RESOURCE = "openai4s"
ANSWER_WITHIN_S = 30.0
_MAX_BODY_BYTES = 256 * 1024
_ANONYMOUS = re.compile("[0-9a-f]{32}")  # what a server calls somebody who only knows its token
_T = TypeVar("_T")


class Wrong(web.HTTPError):
    """An answer that is an error, with a sentence for a person and a code."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(status, message.replace("%", "%%"))
        self.message = message
        self.code = code


def invalid(message: str) -> Wrong:
    return Wrong(400, message, "INVALID_SPEC")


class SessionsHandler(APIHandler):
    """Base of all of them."""

    auth_resource = AUTH_RESOURCE

    def initialize(self, door: ControlDoor) -> None:
        self.door = door

    async def ask(self, question: Callable[[PersonDesk], Coroutine[Any, Any, _T]]) -> _T:
        """Put a question about what there is to the person's desk. Raises Wrong for whatever it refuses."""
        if not self.door.has_state:
            raise Wrong(404, "There is nothing here yet: no session was ever started.", "NOT_FOUND")
        return await self.consult(question)

    async def consult(self, question: Callable[[PersonDesk], Coroutine[Any, Any, _T]]) -> _T:
        """The same about what is to be: where no session ever was, the control plane is made for it."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await asyncio.wrap_future(self.door.control().ask(question))
        except Exception as error:
            raise told(error) from error

    @property
    def actor(self) -> str:
        """Who asks, for the record: a person that the server knows by name, else whose server it is."""
        name: str = getattr(self.current_user, "username", "")
        is_anonymous = not name or _ANONYMOUS.fullmatch(name) is not None
        return getpass.getuser() if is_anonymous else name[:256]

    def shorten(self, path: str) -> str:
        """A path of this machine, as the contents of this server name it."""
        return shortened(path, self.serverapp.root_dir if self.serverapp else "")

    def json_object(self, *known: str) -> dict[str, Any]:
        """The body: an object with no other keys than `known`. An empty one is an empty object."""
        if len(self.request.body) > _MAX_BODY_BYTES:
            raise invalid(f"The body is longer than {_MAX_BODY_BYTES} bytes. Send less.")
        try:
            content = json.loads(self.request.body.decode("utf-8")) if self.request.body.strip() else {}
        except (ValueError, RecursionError):
            raise invalid("The body is not JSON. Send an object, in UTF-8.") from None
        if not isinstance(content, dict):
            raise invalid("The body is not a JSON object. Send one, as in {}.")
        for key in content:
            if key not in known:
                names = ", ".join(known) or "none"
                raise invalid(f"The key {key[:64]!r} is not known here. Known keys: {names}.")
        return content

    def whole_argument(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number of the query."""
        text = self.get_query_argument(name, str(default))
        try:
            value = int(text) if text.isascii() and len(text) < 12 else None
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            raise invalid(f"{name} = {text[:32]!r} is not a whole number from {least} to {most}.")
        return value

    def answer(self, content: Any, status: int = 200) -> None:
        self.set_status(status)
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps(content))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        phrase = HTTPStatus(status_code).phrase if status_code in HTTPStatus._value2member_map_ else "Unknown"
        message, code = phrase, phrase.upper().replace(" ", "_").replace("-", "_")
        if isinstance(error, Wrong):
            message, code = error.message, error.code
        elif isinstance(error, web.HTTPError):
            message = error.log_message or phrase
        else:
            message = "The server met an error that it did not expect. See its log."
        if status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            self.set_header("Allow", ", ".join(verb.upper() for verb in (*verbs_of(type(self)), "options")))
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps({"message": message, "reason": code}))


def verbs_of(handler: type[SessionsHandler]) -> tuple[str, ...]:
    """The methods that a handler answers, beside those of every handler of the server."""
    ours = [cls for cls in handler.__mro__ if issubclass(cls, SessionsHandler)]
    return tuple(verb for verb in ("get", "post") if any(verb in vars(cls) for cls in ours))


def told(error: Exception) -> Exception:
    """An error of ours, as an answer."""
    if isinstance(error, NotFound):
        return Wrong(404, str(error), "NOT_FOUND")
    if isinstance(error, Refused | SessionEnded):
        return Wrong(409, str(error), str(error.reason))
    if isinstance(error, ConfigError | StateError):
        return Wrong(503, str(error), "BACKEND_UNAVAILABLE")
    if isinstance(error, TimeoutError):
        return Wrong(503, "The control plane of sessions did not answer in time. Try again.", "BACKEND_UNAVAILABLE")
    return error


def text_of(content: Mapping[str, Any], key: str, most: int = 1024) -> str:
    """A required piece of text of a body."""
    value = content.get(key)
    if not isinstance(value, str) or not value:
        raise invalid(f"{key} is missing, or is not text. Send it as a string.")
    if len(value) > most or "\0" in value:
        raise invalid(f"{key} is longer than {most} characters, or holds a NUL character.")
    return value


def whole_of(content: Mapping[str, Any], key: str, least: int, most: int) -> int:
    """A required whole number of a body."""
    value = content.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise invalid(f"{key} is missing, or is not a whole number from {least} to {most}.")
    return value


class NotThere(SessionsHandler):
    """Below our prefix, whatever no other handler answers."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        raise _not_there()

    @web.authenticated
    @authorized
    async def post(self) -> None:
        raise _not_there()


def _not_there() -> Wrong:
    return Wrong(404, "There is nothing at this address. rest-api.yml lists what there is.", "NOT_FOUND")
