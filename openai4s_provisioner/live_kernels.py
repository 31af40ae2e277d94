"""The kernels this process holds: starting them, following their sessions, and what Jupyter's `poll` may read of them.

Runs on the control thread's loop; only `state` and `holds` are read from other threads. It writes no fact of its own:
what it knows comes from the session service, and is dropped once a session is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .app_values import Announce, KernelRequest, KernelState, SessionChange
from .gateway.kernel_check import KernelSilent, kernel_answers
from .gateway.worker_gateway import Endpoint, WorkerGateway
from .orchestration.admission import AdmissionRequest
from .orchestration.errors import SessionEnded
from .orchestration.models import Desired, KernelLaunch, ReadyCheck
from .orchestration.reasons import Reason
from .orchestration.session import SessionRequest, SessionService, exit_detail
from .orchestration.store import Situation

_log = logging.getLogger(__name__)
_ALIVE = KernelState(alive=True)
_ENDPOINT_NAME_LENGTH = 12


@dataclass
class _Live:
    """One kernel that Jupyter knows. `launch_id` is its current start."""

    kernel_id: str
    workload_id: str
    allocation_id: str
    launch_id: str
    announce: Announce
    ready_check: ReadyCheck
    asked_at: float = field(default_factory=time.monotonic)
    state: KernelState = _ALIVE
    state_was_lost: bool = False
    follower: asyncio.Task[None] | None = None


class LiveKernels:
    def __init__(self, sessions: SessionService, gateway: WorkerGateway, kernel_answer_s: float) -> None:
        self._sessions = sessions
        self._gateway = gateway
        self._kernel_answer_s = kernel_answer_s
        self._live: dict[str, _Live] = {}

    # -- read from any thread --------------------------------------------------------------------------------------

    def holds(self, kernel_id: str) -> bool:
        """Whether this kernel's session goes on, so that a further start goes into its allocation."""
        live = self._live.get(kernel_id)
        return live is not None and not live.state.final

    def state(self, kernel_id: str) -> KernelState | None:
        live = self._live.get(kernel_id)
        return None if live is None else live.state

    @property
    def kernel_ids(self) -> list[str]:
        return list(self._live)

    # -- on the loop -----------------------------------------------------------------------------------------------

    async def start(
        self, request: KernelRequest, admission: AdmissionRequest, check: ReadyCheck, announce: Announce
    ) -> Endpoint:
        """Start a kernel: in a new session, or again in the one it has. Returns when it has answered.

        Raises Refused or SessionEnded for a first start. A further start never raises: Jupyter's restarter would
        leave its clients waiting for ever. What went wrong then shows in `state`, which it polls.
        """
        admission = replace(admission, launch=replace(admission.launch, launch_id=uuid.uuid4().hex))
        live = self._live.get(request.kernel_id)
        if live is not None and live.state.final and request.state_was_lost:
            # Jupyter's restarter was quicker than the end of the session. It polls next, and is told.
            return await self._open_endpoint(live)
        if live is None or live.state.final:
            return await self._start_first(request, admission, check, announce)
        return await self._start_again(live, request, admission.launch, announce)

    async def release(self, kernel_id: str, reason: Reason, actor: str) -> None:
        """Give a kernel back; durable at the first step. Returns when its session is over. Idempotent."""
        live = self._live.get(kernel_id)
        workload_id = await self._sessions.release_kernel(kernel_id, actor, reason)
        if live is None:
            return
        await asyncio.to_thread(self._gateway.close_endpoint, live.launch_id)
        if workload_id is not None:
            await self._sessions.wait_over(workload_id)
        if live.follower is not None:
            await asyncio.wait({live.follower})
        if self._live.get(kernel_id) is live:
            del self._live[kernel_id]

    def signal(self, kernel_id: str, signum: int) -> None:
        live = self._live.get(kernel_id)
        if live is not None and live.state.alive:
            self._sessions.signal_kernel(live.launch_id, signum)

    def stop_kernel(self, kernel_id: str) -> None:
        live = self._live.get(kernel_id)
        if live is not None and live.state.alive:
            self._sessions.stop_kernel(live.launch_id)

    async def close(self) -> None:
        followers = [live.follower for live in self._live.values() if live.follower is not None]
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
        self._live.clear()

    # -- starting --------------------------------------------------------------------------------------------------

    async def _start_first(
        self, request: KernelRequest, admission: AdmissionRequest, check: ReadyCheck, announce: Announce
    ) -> Endpoint:
        opened = await self._sessions.open(SessionRequest(request.kernel_id, admission))
        live = _Live(request.kernel_id, opened.workload_id, opened.allocation_id, opened.launch_id, announce, check)
        self._live[request.kernel_id] = live
        live.follower = asyncio.get_running_loop().create_task(self._follow(live))
        try:
            return await self._until_ready(live, admission.launch)
        except BaseException as error:
            await self._give_up(live, error)
            raise

    async def _start_again(
        self, live: _Live, request: KernelRequest, launch: KernelLaunch, announce: Announce
    ) -> Endpoint:
        former, live.launch_id, live.announce = live.launch_id, launch.launch_id, announce
        live.state_was_lost = request.state_was_lost
        await asyncio.to_thread(self._gateway.close_endpoint, former)
        try:
            await self._sessions.launch_kernel(live.workload_id, live.kernel_id, launch, request.notebook_path)
            live.state = _ALIVE
            return await self._until_ready(live, launch)
        except (SessionEnded, KernelSilent) as error:
            _log.warning("kernel %s did not start again: %s", live.kernel_id, error)
            self._sessions.stop_kernel(launch.launch_id)
            return await self._open_endpoint(live)

    async def _until_ready(self, live: _Live, launch: KernelLaunch) -> Endpoint:
        endpoint = await self._open_endpoint(live)
        await self._sessions.wait_started(live.workload_id, launch.launch_id)
        await self._answered(live, launch, endpoint)
        await self._sessions.kernel_ready(launch.launch_id)
        await self._sessions.wait_ready(live.workload_id, launch.launch_id)
        return endpoint

    async def _open_endpoint(self, live: _Live) -> Endpoint:
        name = hashlib.sha256(live.kernel_id.encode()).hexdigest()[:_ENDPOINT_NAME_LENGTH]  # a caller may choose ids
        return await asyncio.to_thread(self._gateway.open_endpoint, live.allocation_id, live.launch_id, name)

    async def _answered(self, live: _Live, launch: KernelLaunch, endpoint: Endpoint) -> None:
        """The kernel's answer, or the end of its process or session, whichever comes first."""
        asking = asyncio.ensure_future(
            kernel_answers(_connection_info(launch, endpoint), live.ready_check, self._kernel_answer_s)
        )
        # `wait_ready` cannot succeed before the answer is recorded; it is here for the end it may raise.
        ending = asyncio.ensure_future(self._sessions.wait_ready(live.workload_id, launch.launch_id))
        try:
            await asyncio.wait({asking, ending}, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                ending.result()
            await asking
        finally:
            for task in (asking, ending):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, SessionEnded, KernelSilent):
                    await task

    async def _give_up(self, live: _Live, error: BaseException) -> None:
        """A first start that failed is given back at once: nobody else would."""
        if isinstance(error, SessionEnded):
            reason, detail = error.reason, str(error).removeprefix(error.reason.sentence).strip()
        elif isinstance(error, asyncio.CancelledError):
            reason, detail = Reason.USER_CANCELLED, "The caller gave up the start."
        else:
            reason, detail = Reason.KERNEL_START_FAILED, str(error)
        await asyncio.shield(self._sessions.request_stop(live.workload_id, reason, "provisioner", detail))
        await asyncio.shield(asyncio.to_thread(self._gateway.close_endpoint, live.launch_id))

    # -- following -------------------------------------------------------------------------------------------------

    async def _follow(self, live: _Live) -> None:
        """Keep `state` true and tell a person of every change, until the session is over."""
        told: tuple[Any, ...] = ()
        async for now in self._sessions.changes(live.workload_id):
            live.state = _state(now, live)
            change = self._change(now, live)
            if (change.phase, change.sentence) != told:
                told = (change.phase, change.sentence)
                live.announce(change)

    def _change(self, now: Situation, live: _Live) -> SessionChange:
        workload = now.workload
        readiness = now.readiness(live.kernel_id)
        sentence, reason = readiness.sentence, None
        if workload.phase.is_terminal or workload.desired is Desired.STOPPED:
            reason = workload.reason
            ended = "" if reason is None else f"{reason.sentence} {workload.reason_detail}".strip()
            sentence = ended or f"The session is over ({workload.phase})."
        elif not live.state.alive:
            launch = now.launch(live.kernel_id)
            how = "" if launch is None or launch.exit is None else exit_detail(launch.exit)
            sentence = f"The kernel's process has ended; its session goes on. {how}".strip()
        elif live.state_was_lost and readiness.is_ready:
            reason, sentence = Reason.KERNEL_STATE_LOST, Reason.KERNEL_STATE_LOST.sentence
        elapsed_s = time.monotonic() - live.asked_at
        return SessionChange(
            workload.workload_id, live.kernel_id, workload.phase, readiness, sentence, reason, elapsed_s
        )


def _state(now: Situation, live: _Live) -> KernelState:
    launch = now.launch(live.kernel_id)
    ended = None if launch is None or launch.launch_id != live.launch_id else launch.exit
    over = now.workload.phase.is_terminal
    if ended is None and not over:
        return _ALIVE
    status = 1
    if ended is not None:
        status = -ended.signal if ended.signal else (ended.exit_code or 0)
    return KernelState(False, status, final=over or now.workload.desired is Desired.STOPPED)


def _connection_info(launch: KernelLaunch, endpoint: Endpoint) -> Mapping[str, Any]:
    ports = {f"{channel}_port": port for channel, port in endpoint.ports.items()}
    return {
        "transport": "ipc",
        "ip": endpoint.ip,
        "key": launch.key,
        "signature_scheme": launch.signature_scheme,
        "curve_publickey": launch.curve_publickey,
        "curve_secretkey": launch.curve_secretkey,
        **ports,
    }
