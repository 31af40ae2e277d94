"""The kernels this process holds: starting them, following their sessions, and what Jupyter's `poll` may read of them.

Runs on the control thread's loop; only `state` and `holds` are read from other threads. It writes no fact of its own:
what it knows comes from the session service, and is dropped once a session is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .app_values import Announce, KernelRequest, KernelState, Notice, SessionChange
from .gateway.kernel_check import KernelSilent, kernel_answers
from .gateway.worker_gateway import Endpoint, WorkerGateway
from .orchestration.admission import AdmissionRequest
from .orchestration.cancelling import ended
from .orchestration.errors import SessionEnded
from .orchestration.insistence import until_done
from .orchestration.models import Desired, KernelLaunch, OutputLoss, Phase, ReadyCheck
from .orchestration.reasons import KERNEL_OUT_OF_MEMORY, Reason
from .orchestration.recovery import MAX_RECOVERIES
from .orchestration.session import SessionRequest, SessionService, exit_detail
from .orchestration.store import Situation

_log = logging.getLogger(__name__)
_ALIVE = KernelState(alive=True)
_ENDPOINT_NAME_LENGTH = 12
_FOLLOW_AGAIN_S = 2.0
_WISH_WAIT_S = 5.0  # for the state to take a wish, before whoever waits is told something else


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
    former_launch_id: str = ""
    out_of_memory: str = ""  # the start that was ended for that
    is_given_up: bool = False  # its first start failed: a further one is a new session, though this may still end
    situation: Situation | None = None  # the latest
    epoch: int = 1
    was_ready: bool = False  # it answered once: from then on a lost allocation is worth another one
    revival: asyncio.Task[None] | None = None  # a recovery on its way to a kernel that answers
    told: tuple[Phase, str] | None = None  # what a person heard last
    lost_for: Reason | None = None  # what that recovery is for
    follower: asyncio.Task[None] | None = None


class LiveKernels:
    def __init__(self, sessions: SessionService, gateway: WorkerGateway, kernel_answer_s: float) -> None:
        self._sessions = sessions
        self._gateway = gateway
        self._kernel_answer_s = kernel_answer_s
        self._live: dict[str, _Live] = {}
        self._wishes: set[asyncio.Task[None]] = set()  # on their way into the state
        sessions.when_output_lost = self._tell_loss
        sessions.when_memory_ran_out = self._note_memory

    # -- read from any thread --------------------------------------------------------------------------------------

    def holds(self, kernel_id: str) -> bool:
        """Whether this kernel's session goes on, so that a further start goes into its allocation."""
        live = self._live.get(kernel_id)
        return live is not None and not live.state.final and not live.is_given_up

    def state(self, kernel_id: str) -> KernelState | None:
        live = self._live.get(kernel_id)
        return None if live is None else live.state

    def change(self, kernel_id: str) -> SessionChange | None:
        """What was last to be told of a kernel, as it is now. On the loop."""
        live = self._live.get(kernel_id)
        return None if live is None or live.situation is None else self._change(live.situation, live)

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
        if live is not None and live.is_given_up:
            await self.release(request.kernel_id, Reason.USER_CANCELLED, "provisioner")
        if live is None or not self.holds(request.kernel_id):
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
            over = functools.partial(self._sessions.wait_over, workload_id)
            await until_done(over, f"the end of the session of kernel {kernel_id} could not be looked at yet")
        tasks = {task for task in (live.follower, live.revival) if task is not None}
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.to_thread(self._gateway.close_endpoint, live.launch_id)  # a recovery may have opened it again
        if self._live.get(kernel_id) is live:
            del self._live[kernel_id]

    async def can_recover(self, situation: Situation) -> bool:
        """Whether this session's lost allocation is worth another one: it worked, and somebody is connected to it."""
        live = next((each for each in self._live.values() if each.workload_id == situation.workload.workload_id), None)
        held = [binding for binding in situation.bindings if binding.released_at is None]
        if live is None or not live.was_ready or [each.kernel_id for each in held] != [live.kernel_id]:
            return False
        return await asyncio.to_thread(self._gateway.has_client, live.launch_id)

    def signal(self, kernel_id: str, signum: int) -> None:
        live = self._live.get(kernel_id)
        if live is not None and live.state.alive:
            self._sessions.signal_kernel(live.launch_id, signum)

    def stop_kernel(self, kernel_id: str) -> None:
        live = self._live.get(kernel_id)
        if live is not None and live.state.alive:
            self._sessions.stop_kernel(live.launch_id)

    def notice(self, notice: Notice) -> None:
        """Tell who holds a kernel of that session what becomes of its lease, or of its time."""
        for live in self._live.values():
            if live.workload_id == notice.workload_id:
                live.announce(notice)

    async def close(self) -> None:
        tasks: list[asyncio.Task[Any]] = [*self._wishes]
        tasks += [task for live in self._live.values() for task in (live.follower, live.revival) if task is not None]
        await ended(tasks)
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
        live.former_launch_id = former
        await asyncio.to_thread(self._gateway.close_endpoint, former)
        try:
            await self._sessions.launch_kernel(live.workload_id, live.kernel_id, launch, request.notebook_path)
            live.state = _ALIVE
            return await self._until_ready(live, launch)
        except (SessionEnded, KernelSilent) as error:
            await self._notice_epoch(live, await self._sessions.situation(live.workload_id))
            if live.revival is not None:  # its allocation was lost meanwhile, and a new one is on its way
                await asyncio.wait({live.revival})
                return await self._open_endpoint(live)
            _log.warning("kernel %s did not start again: %s", live.kernel_id, error)
            self._sessions.stop_kernel(launch.launch_id)
            return await self._open_endpoint(live)

    async def _until_ready(self, live: _Live, launch: KernelLaunch) -> Endpoint:
        endpoint = await self._open_endpoint(live)
        await self._sessions.wait_started(live.workload_id, launch.launch_id)
        await self._answered(live, launch, endpoint)
        await self._sessions.kernel_ready(launch.launch_id)
        await self._sessions.wait_ready(live.workload_id, launch.launch_id)
        live.was_ready = True
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
        live.is_given_up = True
        if isinstance(error, SessionEnded):
            reason, detail = error.reason, error.detail
        elif isinstance(error, asyncio.CancelledError):
            reason, detail = Reason.USER_CANCELLED, "The caller gave up the start."
        else:
            reason, detail = Reason.KERNEL_START_FAILED, str(error)
        storing = asyncio.get_running_loop().create_task(self._wish_stopped(live, reason, detail))
        self._wishes.add(storing)
        storing.add_done_callback(self._wishes.discard)
        await asyncio.wait({storing}, timeout=_WISH_WAIT_S)  # it goes on; whoever waits for the start hears of its end
        await asyncio.shield(asyncio.to_thread(self._gateway.close_endpoint, live.launch_id))
        self._forget_if_over(live)

    def _forget_if_over(self, live: _Live) -> None:
        """Nobody gives a kernel back that never started."""
        is_over = live.situation is not None and live.situation.workload.phase.is_terminal
        if live.is_given_up and is_over and self._live.get(live.kernel_id) is live:
            del self._live[live.kernel_id]

    async def _wish_stopped(self, live: _Live, reason: Reason, detail: str) -> None:
        wish = functools.partial(self._sessions.request_stop, live.workload_id, reason, "provisioner", detail)
        await until_done(wish, f"the session of kernel {live.kernel_id}, which did not start, could not be ended yet")

    # -- recovering ------------------------------------------------------------------------------------------------

    async def _notice_epoch(self, live: _Live, now: Situation) -> None:
        """The allocation was lost and another one asked for: lead the same sockets to the kernel that starts there."""
        launch = now.launch(live.kernel_id)
        if now.workload.epoch <= live.epoch or launch is None or now.workload.phase.is_terminal:
            return
        lost_for = await self._sessions.lost_for(live.workload_id)
        if now.workload.epoch <= live.epoch:  # another task was first
            return
        live.lost_for = lost_for
        if live.revival is not None:
            live.revival.cancel()
        live.epoch, live.allocation_id, live.launch_id = (
            now.workload.epoch,
            now.allocation.allocation_id,
            launch.launch_id,
        )
        live.state_was_lost = True
        starts = self._sessions.started_anew(live.workload_id, live.launch_id, live.allocation_id)
        live.revival = asyncio.get_running_loop().create_task(self._revive(live, starts))

    async def _revive(self, live: _Live, launch: KernelLaunch | None) -> None:
        try:
            if launch is not None:
                await self._until_ready(live, launch)
        except (SessionEnded, KernelSilent) as error:
            _log.warning("kernel %s did not come back: %s", live.kernel_id, error)
            if isinstance(error, KernelSilent):
                await self._wish_stopped(live, Reason.KERNEL_START_FAILED, str(error))
        finally:
            if live.revival is asyncio.current_task():
                live.revival = None

    # -- following -------------------------------------------------------------------------------------------------

    async def _follow(self, live: _Live) -> None:
        """Keep `state` true and tell a person of every change, until the session is over, whatever breaks meanwhile."""
        has_broken = False
        while True:
            try:
                async for now in self._sessions.changes(live.workload_id):
                    has_broken = False
                    await self._tell(live, now)
                self._forget_if_over(live)
                return
            except Exception:
                if not has_broken:
                    _log.exception("the session of kernel %s cannot be followed for now", live.kernel_id)
                has_broken = True
            await asyncio.sleep(_FOLLOW_AGAIN_S)

    async def _tell(self, live: _Live, now: Situation) -> None:
        live.situation = now
        await self._notice_epoch(live, now)
        live.state = _state(now, live)
        change = self._change(now, live)
        if (change.phase, change.sentence) != live.told:
            live.told = (change.phase, change.sentence)
            live.announce(change)
            if change.recovered:
                live.lost_for = None

    def _note_memory(self, launch_id: str) -> None:
        for live in self._live.values():
            if live.launch_id == launch_id:
                live.out_of_memory = launch_id

    def _tell_loss(self, loss: OutputLoss) -> None:
        for live in self._live.values():
            if live.launch_id == loss.launch_id and live.situation is not None:
                live.announce(replace(self._change(live.situation, live), sentence=loss.sentence))

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
            reason = Reason.OUT_OF_MEMORY if live.out_of_memory == live.launch_id else None
        elif now.pause:
            sentence = now.pause
        elif now.interrupted_since is not None:
            since = time.strftime("%H:%M:%S", time.localtime(now.interrupted_since))
            sentence = f"The connection to {now.interrupted_place} is interrupted since {since}; it is being re-made."
        elif live.state_was_lost and readiness.is_ready:
            reason, sentence = Reason.KERNEL_STATE_LOST, Reason.KERNEL_STATE_LOST.sentence
            if live.out_of_memory and live.out_of_memory == live.former_launch_id:
                sentence = f"{KERNEL_OUT_OF_MEMORY} {sentence}"
        elif live.lost_for is not None:
            reason = live.lost_for
            again = f"starting again, {live.epoch - 1} of at most {MAX_RECOVERIES} times"
            sentence = f"The allocation was lost ({reason}); {again}. {sentence}"
        return SessionChange(
            workload_id=workload.workload_id,
            kernel_id=live.kernel_id,
            phase=workload.phase,
            readiness=readiness,
            sentence=sentence,
            reason=reason,
            elapsed_s=time.monotonic() - live.asked_at,
            recovered=reason is Reason.KERNEL_STATE_LOST and live.lost_for is not None,
        )


def _state(now: Situation, live: _Live) -> KernelState:
    launch = now.launch(live.kernel_id)
    ended = None if launch is None or launch.launch_id != live.launch_id else launch.exit
    over = now.workload.phase.is_terminal
    # A kernel that went down with its worker: whether the session is over or comes back is about to be decided.
    undecided = now.workload.desired is Desired.RUNNING and any(each.ended_at is not None for each in now.workers)
    if not over and (ended is None or undecided):
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
