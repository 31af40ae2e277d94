"""The control plane of this process: the one door between Jupyter's side and everything that runs sessions.

It lives on a thread of its own with its own event loop, so that a blocked Jupyter loop stalls no session, and a caller
without a loop can use it. The thread starts with the first request, and files and sockets with the first session that
is admitted; loading this module makes nothing.
"""

from __future__ import annotations

import asyncio
import atexit
import getpass
import logging
import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from .app_values import Announce, AppSettings, KernelRequest, KernelState, Notice, SessionChange
from .choices import ChoiceBook, ChosenStart
from .gateway.worker_gateway import Endpoint
from .orchestration.admission import AdmissionRequest
from .orchestration.errors import Refused
from .orchestration.models import ReadyCheck, ResourceProfile, SessionSpec, WorkspacePolicy
from .orchestration.reasons import Reason
from .orchestration.reclaimer import LeaseNotice
from .orchestration.store import Store, leases, overview
from .orchestration.usage import Usage
from .orchestration.walltime import WalltimeNotice
from .orchestration.walltime_desk import Extended
from .parts import AdmissionParts, RunningParts, load_site_config
from .person_desk import PersonDesk
from .starts import StartBoard
from .transport.locked_folder import PrivateFolder, private_path

__all__ = [
    "AppSettings",
    "ControlPlane",
    "Extended",
    "KernelRequest",
    "KernelState",
    "LeaseNotice",
    "Notice",
    "SessionChange",
    "Usage",
    "WalltimeNotice",
    "load_site_config",
]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
EXIT_WAIT_S = 10.0  # how long the end of the process waits for what it still holds to be given back


class ControlPlane:
    """Every method may be called from any thread."""

    _shared: ClassVar[dict[tuple[int, AppSettings], ControlPlane]] = {}
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, settings: AppSettings) -> None:
        """Raises ConfigError for a wrong cluster.toml. Makes no file and no socket."""
        self._admitting = AdmissionParts(settings)
        self._settings = settings
        self._choices = ChoiceBook()
        self.starts = StartBoard()
        self._running: RunningParts | None = None
        self._opening = asyncio.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="openai4s-control", daemon=True)
        self._thread.start()

    @classmethod
    def shared(cls, settings: AppSettings) -> ControlPlane:
        """This process's control plane for these settings; stopped by an exit hook. A forked child gets its own."""
        key = (os.getpid(), settings)
        with cls._guard:
            found = cls._shared.get(key)
            if found is None:
                found = cls._shared[key] = cls(settings)
                _at_exit(found.stop)
            return found

    @classmethod
    def existing(cls, settings: AppSettings) -> ControlPlane | None:
        """That of this process, if anybody has asked for it."""
        with cls._guard:
            return cls._shared.get((os.getpid(), settings))

    # -- what the provisioner asks ---------------------------------------------------------------------------------

    def admit(self, request: KernelRequest) -> Future[None]:
        """Whether this session may be started. Fails with Refused; writes nothing."""
        return self._submit(self._admit(request))

    def launch(self, request: KernelRequest, announce: Announce) -> Future[Endpoint]:
        """Start the kernel, for the first time or again. Done when it has answered. See LiveKernels.start."""
        return self._submit(self._launch(request, announce))

    def release(self, kernel_id: str, reason: Reason, actor: str) -> Future[None]:
        """Give the kernel back; done when its session is over. Nothing to do for one that is not held."""
        return self._submit(self._release(kernel_id, reason, actor))

    def keep(self, kernel_id: str, actor: str) -> Future[leases.Kept]:
        """Renew the idle clock of a kernel. Fails with Refused or SessionEnded, whose text is for a person."""
        return self._submit(self._keep(kernel_id, actor))

    def ask(self, question: Callable[[PersonDesk], Coroutine[Any, Any, _T]]) -> Future[_T]:
        """Put a question, or a wish, to the person's desk."""
        return self._submit(self._ask(question))

    def choose(self, kernel_id: str, chosen: ChosenStart) -> None:
        """What a kernel that will be started under this id is to have."""
        self._choices.choose(kernel_id, chosen)

    def chosen(self, kernel_id: str) -> ChosenStart:
        """What was chosen for it; an empty choice when nothing was."""
        return self._choices.of(kernel_id)

    def profile_named(self, name: str) -> tuple[str, str]:
        """A profile's name, of "" the default one's, and what a person calls it."""
        config = self._admitting.config
        found = config.profiles.get(name or config.default_profile)
        return (name, name) if found is None else (found.name, found.display_name or found.name)

    @property
    def is_driving(self) -> bool:
        return self._running is not None

    def drive_what_is_open(self) -> Future[bool]:
        """Drive whatever this person has that is not over and nobody drives. Where there is no state, it makes none."""
        return self._submit(self._drive_what_is_open())

    def extend(self, session: str, seconds: int, actor: str) -> Future[Extended]:
        """Put the end of a session off; `session` is one of its kernels, or itself. Fails with Refused."""
        return self._submit(self._extend(session, seconds, actor))

    def can_extend(self, profile: str) -> bool:
        """Whether sessions of this profile may be extended at all. From memory."""
        return self._admitting.walltime.can_extend(profile)

    def usage(self, workload_id: str) -> Usage | None:
        """What a session uses, as its workers last told. From memory; None while nothing is known."""
        return None if self._running is None else self._running.usage.of(workload_id)

    def signal(self, kernel_id: str, signum: int) -> None:
        """Send a signal to the kernel's process. A dead kernel is no error."""
        if self._running is not None:
            self._loop.call_soon_threadsafe(self._running.kernels.signal, kernel_id, signum)

    def stop_kernel(self, kernel_id: str) -> None:
        """End the kernel's process at once; the allocation stays."""
        if self._running is not None:
            self._loop.call_soon_threadsafe(self._running.kernels.stop_kernel, kernel_id)

    def holds(self, kernel_id: str) -> bool:
        return self._running is not None and self._running.kernels.holds(kernel_id)

    def kernel_state(self, kernel_id: str) -> KernelState | None:
        """From memory, never blocking. None for a kernel that is not held."""
        return None if self._running is None else self._running.kernels.state(kernel_id)

    def stop(self) -> None:
        """Give everything back, bounded in time, and end the thread. Idempotent."""
        with self._guard:
            self._shared.pop((os.getpid(), self._settings), None)
        if not self._thread.is_alive() or self._loop.is_closed():
            return
        try:
            self._submit(self._stop()).result(3 * EXIT_WAIT_S)
        except Exception:
            _log.exception("the control plane did not stop as it should")
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(EXIT_WAIT_S)

    # -- on the loop -----------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def _submit(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _admit(self, request: KernelRequest) -> None:
        await self._admitting.admission.admit(self._admission(request))

    async def _launch(self, request: KernelRequest, announce: Announce) -> Endpoint:
        running = await self._opened()
        profile = self._profile(request)
        check = ReadyCheck.EXECUTE if profile is None else profile.ready_check
        return await running.kernels.start(request, self._admission(request), check, announce)

    async def _release(self, kernel_id: str, reason: Reason, actor: str) -> None:
        if self._running is not None:
            await self._running.kernels.release(kernel_id, reason, actor)

    async def _keep(self, kernel_id: str, actor: str) -> leases.Kept:
        if self._running is None:
            raise Refused(Reason.INVALID_SPEC, f"No session holds the kernel {kernel_id!r}.")
        return await self._running.keep(kernel_id, actor)

    async def _ask(self, question: Callable[[PersonDesk], Coroutine[Any, Any, _T]]) -> _T:
        return await question(PersonDesk(self._admitting, self._running))

    async def _drive_what_is_open(self) -> bool:
        store = self._admitting.store
        if not store.exists or await store.run(overview.open_ones, getpass.getuser()) == 0:
            return False
        running = await self._opened()
        await running.reconciler.adopt()  # what a process left that is gone, now and not within a minute
        return True

    async def _extend(self, session: str, seconds: int, actor: str) -> Extended:
        store = self._admitting.store
        held = await store.run(Store.workload_of_kernel, session) if store.exists else None
        if self._running is None:
            return await self._admitting.walltime.extend(held or session, seconds, actor)
        return await self._running.extend(held or session, seconds, actor)

    async def _opened(self) -> RunningParts:
        async with self._opening:
            if self._running is None:
                folder = PrivateFolder(_runtime_parent(), secrets.token_hex(4))
                try:
                    running = await asyncio.to_thread(RunningParts, self._admitting, folder)
                    running.start()
                except BaseException:
                    folder.remove()
                    raise
                self._running = running
            return self._running

    async def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            releases = [
                running.kernels.release(kernel_id, Reason.USER_CANCELLED, "the process ended")
                for kernel_id in running.kernels.kernel_ids
            ]
            try:
                async with asyncio.timeout(EXIT_WAIT_S):
                    await asyncio.gather(*releases, return_exceptions=True)
                    await running.reconciler.turn()  # take away what ended attempts left
            except TimeoutError:
                _log.warning("not everything was given back in time; what is left is wished stopped and goes on")
            await running.stop()
        await self._admitting.stop()

    def _profile(self, request: KernelRequest) -> ResourceProfile | None:
        config = self._admitting.config
        return config.profiles.get(request.profile or config.default_profile)

    def _admission(self, request: KernelRequest) -> AdmissionRequest:
        """The durable part of a request, with the workspace that its profile gives it."""
        profile = self._profile(request)
        policy = WorkspacePolicy.ROOT if profile is None else profile.workspace
        workspace, cwd = request.root, request.cwd
        if policy is WorkspacePolicy.NOTEBOOK:
            workspace = cwd
        elif policy is WorkspacePolicy.PRIVATE:
            workspace = cwd = self._settings.workspaces_dir / request.kernel_id
        return AdmissionRequest(
            owner=getpass.getuser(),
            profile=request.profile,
            spec=SessionSpec(
                workspace=str(workspace),
                cwd=str(cwd),
                kernel_name=request.launch.kernel_name,
                notebook_path=request.notebook_path,
                installation=request.installation,
                resources=request.resources,
                choice=request.choice,
            ),
            launch=replace(request.launch, cwd=str(cwd)),
            socket_path=_longest_socket_path(),
        )


def _runtime_parent() -> str:
    """XDG_RUNTIME_DIR if it can be written, else the folder for temporary files; socket paths must be short."""
    preferred = os.environ.get("XDG_RUNTIME_DIR", "")
    return preferred if preferred and os.access(preferred, os.W_OK | os.X_OK) else tempfile.gettempdir()


def _longest_socket_path() -> str:
    """As long as the longest one that a session will bind here."""
    return str(Path(private_path(_runtime_parent(), "12345678")) / "gw" / "123456789012-1")


def _at_exit(stop: Any) -> None:
    """Stop before the interpreter shuts thread pools down, which it does ahead of the public exit hooks."""
    register = getattr(threading, "_register_atexit", None)
    if register is None:
        atexit.register(stop)
    else:
        register(stop)
