"""The kernel provisioner: Jupyter's lifecycle calls, mapped onto one session of the control plane.

Every hook says who calls it and when. It refuses to block: `poll` reads a cache, everything else awaits the control
plane's own thread. Killing and restarting touch the kernel's process only; the allocation ends in `cleanup`, since
Jupyter does not tell `kill` and `terminate` whether a restart follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import zmq
from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.kernelspec import KernelSpec, NoSuchKernel
from jupyter_client.manager import KernelManager
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase
from traitlets import Unicode
from traitlets.config import Config

from ..app import ControlPlane, KernelRequest, KernelState, Notice, SessionChange
from ..orchestration.errors import ConfigError, Refused, SessionEnded
from ..orchestration.models import KernelLaunch, KernelTransport
from ..orchestration.reasons import Reason
from ..starts import Start
from .announcer import Announcer
from .environment import installation_folders, kernel_argv, session_environment
from .failed_starts import forgotten_if_it_fails
from .kernelspecs import MARK, chosen_transport, mark
from .settings import OpenAI4S, configured

_T = TypeVar("_T")
_POLL_S = 0.05
_LONG_ADMISSION_S = 1.5  # after which a person is told what takes so long
RELEASE_WAIT_S = 10.0  # for the stop to be stored and the end seen; afterwards it goes on by itself


class StartGivenUp(SessionEnded):
    """A kernel was shut down before it had started."""


class SessionProvisioner(KernelProvisionerBase):
    """Runs a kernel in a session: an allocation, a worker in it, and a sandbox around the kernel."""

    profile = Unicode("", help="Profile of cluster.toml to ask for. Empty: the site's default profile.").tag(
        config=True
    )
    base_kernel = Unicode("", help="Kernelspec whose kernel is started. Empty: this kernelspec itself.").tag(
        config=True
    )

    _control: ControlPlane | None = None
    _request: KernelRequest | None = None
    _start: Start | None = None  # while it is no session yet
    _running = False  # between a launch and the `wait` that found its process ended
    _ending_wished = False  # Jupyter asked for the end of this process, so its end is no surprise
    _is_listening = False  # to the restarter's "dead"
    _died = False  # it ended without being asked to: its memory is lost, and a person must hear that

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._is_given_up = asyncio.Event()

    @property
    def has_process(self) -> bool:
        """Read by the KernelManager all over; asserted to be true right after `launch_kernel`."""
        return self._running

    @forgotten_if_it_fails
    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Called before every launch, restarts included. Asks admission; its refusal is what the person reads."""
        control = self._control_plane()
        is_new = not control.holds(self.kernel_id) and not self._died  # a restarter is no reason for a new session
        self._start = self._start_of(control, kwargs.get("env", {})) if is_new else None
        with self._shown(control):
            return await self._admitted(control, kwargs)

    async def _admitted(self, control: ControlPlane, kwargs: dict[str, Any]) -> dict[str, Any]:
        spec = self._base_spec()
        self.kernel_spec = spec
        chosen = set(spec.env)
        extra_arguments = kwargs.pop("extra_arguments", [])
        kwargs = await super().pre_launch(cmd=[], **kwargs)
        argv = kernel_argv(spec, extra_arguments, {k: v for k, v in kwargs.items() if isinstance(v, str)})
        kwargs["env"] = session_environment(kwargs["env"], chosen)
        request = self._kernel_request(spec, argv, kwargs)
        if self._start is not None:
            notice = asyncio.get_running_loop().call_later(_LONG_ADMISSION_S, self._announcer().still_checking)
            try:
                await self._unless_given_up(control.admit(request))
            finally:
                notice.cancel()
        self._request = request
        kwargs["cmd"] = argv
        return kwargs

    @forgotten_if_it_fails
    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Called after `pre_launch`. Returns when the kernel has answered, so that client time-outs start then."""
        control, request = self._control_plane(), self._request
        assert request is not None, "pre_launch comes first"
        announcer = self._announcer()
        if request.launch.transport.needs_private_network:
            self.log.info(
                "Kernel %s can only do TCP: it gets a network of its own and cannot reach anything outside.",
                self.kernel_id,
            )
        loop = asyncio.get_running_loop()

        def announce(change: SessionChange | Notice) -> None:
            control.starts.forget(self.kernel_id)  # it is a session
            announcer.announce_from_any_thread(change)
            if isinstance(change, SessionChange) and change.recovered:
                with contextlib.suppress(RuntimeError):  # the caller's loop is closed
                    loop.call_soon_threadsafe(self._recovered)

        with self._shown(control):
            launching = control.launch(request, announce)
            try:
                endpoint = await self._unless_given_up(launching)
            except (asyncio.CancelledError, StartGivenUp):
                self._hand_back(control, Reason.USER_CANCELLED, "the caller gave up the start")
                raise
        self._start = None
        control.starts.forget(self.kernel_id)
        self._running, self._ending_wished, self._died = True, False, False
        connection_info = KernelConnectionInfo(
            transport="ipc",
            ip=endpoint.ip,
            key=self._manager.session.key,
            signature_scheme=request.launch.signature_scheme,
            kernel_name=request.launch.kernel_name,
            shell_port=endpoint.ports["shell"],
            iopub_port=endpoint.ports["iopub"],
            stdin_port=endpoint.ports["stdin"],
            control_port=endpoint.ports["control"],
            hb_port=endpoint.ports["hb"],
        )
        if request.launch.curve_publickey:
            connection_info["curve_publickey"] = request.launch.curve_publickey
            connection_info["curve_secretkey"] = request.launch.curve_secretkey
        self.connection_info = connection_info
        return connection_info

    async def post_launch(self, **kwargs: Any) -> None:
        """Called once the restarter runs. When that gives a kernel up, no `cleanup` follows; its callback tells us."""
        if not self._is_listening and getattr(self.parent, "_restarter", None) is not None:
            self._manager.add_restart_callback(self._given_up, "dead")
            self._is_listening = True

    async def poll(self) -> int | None:
        """Called every 3 s by the restarter and every 0.1 s during a shutdown. None while alive or not known."""
        state = self._state()
        if state is None or state.alive:
            return None
        if state.final:
            self._forbid_restart()
        if not self._ending_wished:
            self._died = True
        return state.exit_status

    async def wait(self) -> int | None:
        """Called once `poll` said that the process ended. Afterwards there is no process."""
        while (status := await self.poll()) is None and self._state() is not None:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        self._running = False
        return status

    async def send_signal(self, signum: int) -> None:
        """Called for interrupts, and as the first step of every shutdown: a dead kernel is no error."""
        if self._running and signum != 0:
            self._control_plane().signal(self.kernel_id, signum)

    async def kill(self, restart: bool = False) -> None:
        """Called to end the kernel at once. `restart` cannot be trusted: the allocation stays."""
        self._ending_wished = True
        if self._running:
            self._control_plane().stop_kernel(self.kernel_id)

    async def terminate(self, restart: bool = False) -> None:
        """Called when the kernel did not end on a shutdown message in half of its time."""
        self._ending_wished = True
        await self.send_signal(signal.SIGTERM)

    async def shutdown_requested(self, restart: bool = False) -> None:
        """Called after the shutdown message was sent: the kernel will end by itself."""
        self._ending_wished = True

    async def cleanup(self, restart: bool = False) -> None:
        """Called last in every shutdown and restart; `restart` is true to its name here. Gives the allocation back."""
        self._running = False
        if restart or self._control is None:
            return
        self.forget_start()
        released = self._hand_back(self._control, Reason.USER_CANCELLED, "kernel shut down")
        if released is not None and not self._under_a_server():
            await _finished(released, RELEASE_WAIT_S)

    def give_up(self) -> None:
        """Called when the kernel is shut down while it still starts: the start fails at once, and leaves nothing."""
        self._is_given_up.set()

    def forget_start(self) -> None:
        """Called when the kernel is gone from its manager: a refusal is told as long as it is there."""
        if self._control is not None:
            self._control.starts.forget(self.kernel_id)

    def _start_of(self, control: ControlPlane, env: Mapping[str, str]) -> Start:
        """What is to be shown of this start before it is a session."""
        profile = control.chosen(self.kernel_id).profile or self.profile
        name, display_name = control.profile_named(profile)
        path = env.get("JPY_SESSION_NAME", "")
        return Start(self.kernel_id, self._manager.kernel_name, name, display_name, path)

    def _shown(self, control: ControlPlane) -> AbstractContextManager[None]:
        """Whatever becomes of a first start is told, until it is a session."""
        if self._start is None:
            return contextlib.nullcontext()
        return control.starts.shown(self._start, self._announcer().announce_start)

    def _announcer(self) -> Announcer:
        return Announcer(getattr(self.parent, "event_logger", None), self.log, self.kernel_id)

    async def _unless_given_up(self, asked: Future[_T]) -> _T:
        """The control plane's answer. Raises StartGivenUp without waiting for it; then nothing of it goes on."""
        answer = asyncio.wrap_future(asked)
        given_up = asyncio.ensure_future(self._is_given_up.wait())
        waited: set[asyncio.Future[Any]] = {answer, given_up}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise StartGivenUp(Reason.USER_CANCELLED, Reason.USER_CANCELLED.sentence)
            return answer.result()
        finally:
            answer.cancel()
            given_up.cancel()

    def _given_up(self) -> None:
        """The restarter's "dead" callback: the kernel left Jupyter's map, and nothing else will release it."""
        self._running = False
        if self._control is not None:
            self._hand_back(self._control, Reason.KERNEL_START_FAILED, "the kernel kept dying")

    def _hand_back(self, control: ControlPlane, reason: Reason, actor: str) -> Future[None] | None:
        """Ask for the end of the session. Nobody waits for it under a server: what goes wrong is said in the log."""

        def told(released: Future[None]) -> None:
            if not released.cancelled() and (error := released.exception()) is not None:
                self.log.error("The session of kernel %s could not be given back: %s", self.kernel_id, error)

        try:
            released = control.release(self.kernel_id, reason, actor)
        except RuntimeError as error:  # its control plane has stopped
            self.log.error("The session of kernel %s could not be given back: %s", self.kernel_id, error)
            return None
        released.add_done_callback(told)
        return released

    def _recovered(self) -> None:
        """A lost session came back in another allocation: clients must hear what a restart of the kernel tells them."""
        restarter = getattr(self.parent, "_restarter", None)
        if restarter is not None:
            restarter._fire_callbacks("restart")

    @property
    def _manager(self) -> KernelManager:
        """The KernelManager that made us; jupyter_client always passes it as the parent."""
        manager = self.parent
        assert isinstance(manager, KernelManager)
        return manager

    def _control_plane(self) -> ControlPlane:
        if self._control is None:
            settings = OpenAI4S(parent=self)
            if not self._under_a_server():  # papermill, nbclient, a console: nobody has read the server's files
                settings = OpenAI4S(config=_over(configured(), self.config))
            self._control = ControlPlane.shared(settings.frozen())
        return self._control

    def _state(self) -> KernelState | None:
        return None if self._control is None else self._control.kernel_state(self.kernel_id)

    def _forbid_restart(self) -> None:
        """What ended for good is not started again by Jupyter's restarter: raising later leaves clients waiting."""
        restarter = getattr(self.parent, "_restarter", None)
        if restarter is not None:
            restarter.restart_limit = 0

    def _under_a_server(self) -> bool:
        return hasattr(getattr(self.parent, "parent", None), "root_dir")

    def _base_spec(self) -> KernelSpec:
        """The kernel to start: its command from the base kernelspec, its environment from both."""
        own: KernelSpec = self.kernel_spec
        spec = own
        if self.base_kernel and not own.metadata.get("openai4s_resolved"):
            try:
                spec = self._manager.kernel_spec_manager.get_kernel_spec(self.base_kernel)
            except NoSuchKernel:
                raise Refused(
                    Reason.INVALID_SPEC,
                    f"Kernelspec {self._manager.kernel_name!r} starts the kernel {self.base_kernel!r}, which is not "
                    "installed. Install it, or run 'jupyter openai4s kernels install' again.",
                ) from None
            spec.env = {**spec.env, **own.env}
            spec.metadata = {**spec.metadata, MARK: {**mark(spec.metadata), **mark(own.metadata)}}
            spec.metadata["openai4s_resolved"] = True
        if not spec.argv:
            raise Refused(
                Reason.INVALID_SPEC,
                f"Kernelspec {self.base_kernel or self._manager.kernel_name!r} in {spec.resource_dir} has no argv. "
                "Add the kernel's command to its kernel.json.",
            )
        return spec

    def _transport(self, spec: KernelSpec) -> KernelTransport:
        """How this kernel can be reached, as its kernelspec says."""
        try:
            return chosen_transport(spec.metadata)
        except ConfigError as error:
            name = self.base_kernel or self._manager.kernel_name
            raise Refused(Reason.INVALID_SPEC, f"Kernelspec {name!r} in {spec.resource_dir}: {error}") from None

    def _curve_keys(self) -> tuple[bytes, bytes]:
        """Where CurveZMQ is required end to end, the manager's pair, kept over restarts. The tunnel needs none itself.

        That the kernel can do it was checked by the manager, from its kernelspec, before it asked us.
        """
        manager = self._manager
        if manager.transport_encryption != "required":
            return b"", b""
        if manager.curve_publickey is None:
            manager.curve_publickey, manager.curve_secretkey = zmq.curve_keypair()
        return manager.curve_publickey, manager.curve_secretkey or b""

    def _kernel_request(self, spec: KernelSpec, argv: list[str], kwargs: Mapping[str, Any]) -> KernelRequest:
        root = getattr(getattr(self.parent, "parent", None), "root_dir", None)
        # A server that names no folder means its own, which need not be where it was started.
        cwd = Path(kwargs.get("cwd") or root or os.getcwd()).absolute()
        env: dict[str, str] = kwargs["env"]
        home = Path.home()
        public, secret = self._curve_keys()
        launch = KernelLaunch(
            launch_id="",
            argv=tuple(argv),
            env=env,
            cwd=str(cwd),
            key=self._manager.session.key.decode(),
            signature_scheme=self._manager.session.signature_scheme,
            kernel_name=self._manager.kernel_name,
            transport=self._transport(spec),
            curve_publickey=public.decode(),
            curve_secretkey=secret.decode(),
        )
        chosen = self._control_plane().chosen(self.kernel_id)
        resources = [spec.resource_dir] if spec.resource_dir and os.path.isdir(spec.resource_dir) else []
        return KernelRequest(
            kernel_id=self.kernel_id,
            profile=chosen.profile or self.profile,
            root=Path(root).absolute() if root else cwd,
            cwd=cwd,
            notebook_path=env.get("JPY_SESSION_NAME", ""),
            installation=tuple(installation_folders(argv, home, env.get("PATH"))),
            resources=tuple(resources),
            launch=launch,
            choice=chosen.choice,
            state_was_lost=self._died,
        )


def _over(files: Config, own: Config) -> Config:
    """What a program was configured with itself counts more than what the files say."""
    files.merge(own)
    return files


async def _finished(future: Future[None], timeout_s: float) -> None:
    """Wait for the release, but no longer than this: it is durable by now, and goes on in the background."""
    try:
        await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), timeout_s)
    except (TimeoutError, SessionEnded):
        return


__all__ = ["SessionChange", "SessionProvisioner"]
