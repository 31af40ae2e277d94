"""REST: starts with chosen resources, and starting an ended session again. Described in rest-api.yml.

Nothing here starts an allocation: a choice is written down, and the kernel is then started as any other is.
"""

from __future__ import annotations

import uuid
from pathlib import PurePosixPath
from typing import Any

from jupyter_client.kernelspec import KernelSpec, NoSuchKernel
from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized
from tornado import web

from ..choices import ChosenStart
from ..orchestration.choice import CHOOSABLE, ResourceChoice
from ..orchestration.errors import ConfigError
from ..orchestration.models import Kind, ResourceProfile, SessionSpec
from ..person_desk import PersonDesk, View
from .kernelspecs import profile_of
from .rest_base import SessionsHandler, Wrong, invalid, text_of, told

_MOST = 1 << 40


class Launches(SessionsHandler):
    """The choice for a kernel that the page starts next, under the id it has chosen."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        content = self.json_object("kernel_id", "profile", "kernel_name", "resources")
        kernel_id = _kernel_id(text_of(content, "kernel_id", 36))
        kernel_name = text_of(content, "kernel_name", 256)
        profile = content.get("profile", "")
        if not isinstance(profile, str) or len(profile) > 64:
            raise invalid("profile is not the name of one. Send one of GET profiles.")
        spec_profile = profile_of(self._kernelspec(kernel_name, 400).metadata)
        if spec_profile is None:
            raise invalid(f"The kernel {kernel_name!r} starts no session, so nothing can be chosen for it.")
        choice = _choice(content.get("resources"))
        if kernel_id in self.kernel_manager:
            raise Wrong(409, f"The kernel {kernel_id} exists already. Choose another id.", "INVALID_SPEC")
        chosen = await self._checked(profile or spec_profile, choice)
        self.door.control().choose(kernel_id, ChosenStart(chosen.name, choice))
        self.answer({"kernel_id": kernel_id}, 201)

    async def _checked(self, profile: str, choice: ResourceChoice) -> ResourceProfile:
        async def check(desk: PersonDesk) -> ResourceProfile:
            return desk.check_choice(profile, choice)

        try:
            return await self.consult(check)
        except Wrong as error:
            raise error if error.status_code == 503 else invalid(error.message) from error

    def _kernelspec(self, name: str, status: int) -> KernelSpec:
        return kernelspec(self, name, status)


class StartAgain(SessionsHandler):
    """An ended session, as it was asked for: same kernel, same profile, same choice, same notebook."""

    @web.authenticated
    @authorized
    async def post(self, workload_id: str) -> None:
        makes_session = self.json_object("make_session").get("make_session", True)
        if not isinstance(makes_session, bool):
            raise invalid("make_session is not true or false.")
        view = await self.ask(lambda desk: desk.view(workload_id, Kind.SESSION))
        workload, spec = view.seen.now.workload, view.seen.now.workload.spec
        assert isinstance(spec, SessionSpec)
        if not view.is_over:
            raise Wrong(409, "The session is not over. Stop it first, or restart its kernel.", "INVALID_SPEC")
        kernelspec(self, spec.kernel_name, 409)
        path = await self._notebook(view)

        async def check(desk: PersonDesk) -> ResourceProfile:
            return desk.check_choice(workload.profile, spec.choice)

        await self.ask(check)
        kernel_id = str(uuid.uuid4())
        try:
            self.door.control().choose(kernel_id, ChosenStart(workload.profile, spec.choice))
            await self._start(kernel_id, spec.kernel_name, path, makes_session)
        except ConfigError as error:
            raise told(error) from error
        self.answer({"kernel_id": kernel_id, "path": path}, 202)

    async def _notebook(self, view: View) -> str:
        """Its path in this server's contents. Raises Wrong where there is none: nobody would connect to the kernel.

        A console has a path too, but of no file; it is over with its kernel.
        """
        path = next((each.notebook_path for each in view.seen.now.bindings if each.notebook_path), "")
        short = self.shorten(path) if path else ""
        if not short or short.startswith("/"):
            raise _no_notebook("Its kernel belonged to no notebook of this server")
        try:
            found = await ensure_async(self.contents_manager.get(short, content=False))
        except web.HTTPError:
            raise _no_notebook(f"There is no notebook {short[:256]} any more, or there never was one") from None
        if found["type"] != "notebook":
            raise _no_notebook(f"{short[:256]} is not a notebook")
        return short

    async def _start(self, kernel_id: str, kernel_name: str, path: str, makes_session: bool) -> None:
        sessions: Any = self.session_manager
        names = {"path": path, "name": PurePosixPath(path).name, "type": "notebook", "kernel_name": kernel_name}
        if not await sessions.session_exists(path=path):
            if makes_session:
                await sessions.create_session(kernel_id=kernel_id, **names)
            else:
                await sessions.start_kernel_for_session(str(uuid.uuid4()), kernel_id=kernel_id, **names)
            return
        before = await sessions.get_session(path=path)
        if before["kernel"]["execution_state"] != "dead":
            raise Wrong(409, f"Another kernel runs for {path}. Shut it down first.", "INVALID_SPEC")
        await sessions.start_kernel_for_session(before["id"], kernel_id=kernel_id, **names)
        await sessions.update_session(before["id"], kernel_id=kernel_id)
        await self.kernel_manager.shutdown_kernel(before["kernel"]["id"])


def _no_notebook(why: str) -> Wrong:
    return Wrong(409, f"{why}. Open a new notebook or console with the same kernel instead.", "INVALID_SPEC")


def kernelspec(handler: SessionsHandler, name: str, status: int) -> KernelSpec:
    """Raises Wrong with that status when it is not installed."""
    try:
        spec: KernelSpec = handler.kernel_spec_manager.get_kernel_spec(name)
    except (NoSuchKernel, ValueError):
        message = f"There is no kernelspec {name[:64]!r} here. Install it, or choose another kernel."
        raise Wrong(status, message, "INVALID_SPEC") from None
    return spec


def _kernel_id(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise invalid(f"kernel_id = {text!r} is not a UUID. Choose a new one for each start.") from None


def _choice(resources: Any) -> ResourceChoice:
    if resources is None:
        return ResourceChoice()
    if not isinstance(resources, dict):
        raise invalid("resources is not an object. Send only what is to differ from the profile.")
    for name, value in resources.items():
        if name not in CHOOSABLE:
            raise invalid(f"resources.{name[:64]} cannot be chosen. Choose of: {', '.join(CHOOSABLE)}.")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST):
            raise invalid(f"resources.{name} = {str(value)[:32]!r} is not a whole number.")
    return ResourceChoice(**resources)
