"""What workers report, taken in from the gateway's thread and worked off in order on the control thread's loop.

A report is a fact: it is written down, and where it means the end of a session, that wish is stated with its reason.
A malformed report is logged and dropped; it never stops the ones behind it. A state that cannot be written holds them
up, in their order, until it can.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from .bootstrap import CredentialIssuer
from .cancelling import ended
from .changes import ChangeBoard
from .config import Policy
from .errors import ProvisionerError
from .insistence import until_done
from .leases import Activity
from .models import Allocation, Desired, KernelExit, LinkState, OutputLoss, Phase, Registration
from .outbox import Outbox
from .reasons import Reason
from .session import SessionService, exit_detail
from .steady_clock import steady_time
from .store import LaunchRow, Store, StoreThread, leases
from .usage import UsageBoard, whole
from .workspace_proof import answer_holds, remove_proofs

_log = logging.getLogger(__name__)
_ACTOR = "worker"
_MOST_FAILURES = 16
_PROOF_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class WorkerReports:
    """The gateway's observer. Its three callbacks may come from any thread; everything else is for the loop."""

    def __init__(
        self,
        *,
        store: StoreThread,
        sessions: SessionService,
        outbox: Outbox,
        changes: ChangeBoard,
        poke: Callable[[str], None],
        issuer: CredentialIssuer,
        policy: Policy,
        leases_changed: Callable[[], None] = lambda: None,
        usage: UsageBoard | None = None,
        memory_limit_mb: Callable[[str], int] = lambda profile: 0,
        clock: Callable[[], float] = steady_time,
    ) -> None:
        self._store = store
        self._leases_changed = leases_changed
        self._usage = usage or UsageBoard(clock)
        self._memory_limit_mb = memory_limit_mb
        self._sessions = sessions
        self._outbox = outbox
        self._changes = changes
        self._poke = poke
        self._issuer = issuer
        self._policy = policy
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self._reader: asyncio.Task[None] | None = None
        self._proofs: set[asyncio.Task[None]] = set()
        self._handlers: dict[str, Callable[[Allocation, int, Mapping[str, Any]], Awaitable[None]]] = {
            "isolation": self._isolation,
            "workspace": self._workspace,
            "kernel_started": self._kernel_started,
            "kernel_exited": self._kernel_exited,
            "activity": self._activity,
            "keep_request": self._keep_asked,
            "output_lost": self._output_lost,
            "dialled": self._dialled,
            "ended": self._ended,
            "usage": self._used,
        }

    def start(self) -> None:
        """Begin to work reports off. On the control thread's loop."""
        self._loop = asyncio.get_running_loop()
        self._reader = self._loop.create_task(self._work_off())

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    async def stop(self) -> None:
        tasks = [task for task in (self._reader, *self._proofs) if task is not None]
        self._loop = None
        await ended(tasks)

    async def settled(self) -> None:
        """Return when everything that was posted so far is worked off."""
        await self._inbox.join()
        await asyncio.gather(*self._proofs)

    # -- from any thread -------------------------------------------------------------------------------------------

    def worker_registered(self, registration: Registration, host: str, generation: str) -> None:
        self._post(functools.partial(self._registered, registration.allocation_id, registration.rank))

    def worker_message(self, allocation_id: str, rank: int, message: Mapping[str, Any]) -> None:
        self._post(functools.partial(self._message, allocation_id, rank, message))

    def worker_link(self, allocation_id: str, rank: int, state: LinkState | str) -> None:
        self._post(functools.partial(self._link, allocation_id, rank, LinkState(str(state))))

    def _post(self, work: Callable[[], Awaitable[None]]) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(self._inbox.put_nowait, work)

    # -- on the loop -----------------------------------------------------------------------------------------------

    async def _work_off(self) -> None:
        while True:
            work = await self._inbox.get()
            try:
                await until_done(work, "a worker's report could not be written down yet")
            except Exception:
                _log.exception("a worker's report could not be worked off")
            finally:
                self._inbox.task_done()

    async def _registered(self, allocation_id: str, rank: int) -> None:
        allocation = await self._store.run(Store.allocation, allocation_id)
        if allocation is None:
            return
        self._outbox.flush(allocation_id, rank)
        self._announce(allocation)

    async def _link(self, allocation_id: str, rank: int, state: LinkState) -> None:
        allocation = await self._store.run(Store.allocation, allocation_id)
        if allocation is None:
            return
        await self._store.run(Store.worker_link, allocation_id, rank, state, self._clock())
        if state is LinkState.CONNECTED:
            self._outbox.flush(allocation_id, rank)
        self._announce(allocation)

    async def _message(self, allocation_id: str, rank: int, message: Mapping[str, Any]) -> None:
        handler = self._handlers.get(str(message.get("type")))
        allocation = await self._store.run(Store.allocation, allocation_id)
        if handler is None or allocation is None or allocation.phase.is_terminal:
            _log.warning("dropped a report of type %.40r from worker %d", message.get("type"), rank)
            return
        await handler(allocation, rank, message)
        if handler not in (self._activity, self._used):  # which move no phase, and come often
            self._announce(allocation)

    async def _isolation(self, allocation: Allocation, rank: int, message: Mapping[str, Any]) -> None:
        launch = await self._launch(allocation, message)
        stopped = message.get("ok") is True
        if launch is not None:
            await self._store.run(Store.kernel_isolated, launch.launch_id, stopped)
        if not stopped:
            await self._stop(allocation, Reason.ISOLATION_UNVERIFIED, str(message.get("sentence", "")))

    async def _workspace(self, allocation: Allocation, rank: int, message: Mapping[str, Any]) -> None:
        if await self._has_workspace(allocation, rank):
            return  # proven once; a kernel that starts again may report again, after the nonce was taken away
        if message.get("ok") is not True:
            code, detail = str(message.get("code", "missing")), str(message.get("detail", ""))
            await self._workspace_failed(allocation, rank, code, detail)
            return
        if message.get("nonce") != self._issuer.workspace_nonce(allocation.allocation_id):
            await self._workspace_failed(allocation, rank, "wrong_mount", "another folder is mounted there")
            return
        proof = asyncio.get_running_loop().create_task(self._await_answer(allocation, rank))
        self._proofs.add(proof)
        proof.add_done_callback(self._proofs.discard)

    async def _await_answer(self, allocation: Allocation, rank: int) -> None:
        """Re-open the answer from here; a network file system may take its time to show it."""
        workload = await self._store.run(Store.workload, allocation.workload_id)
        if workload is None:
            return
        workspace = Path(workload.spec.workspace)
        nonce = self._issuer.workspace_nonce(allocation.allocation_id)
        deadline = asyncio.get_running_loop().time() + self._policy.workspace_settle_s
        pauses = iter(_PROOF_PAUSES_S)
        seen = f"its answer does not appear in {workspace}"
        while True:
            try:
                if await asyncio.to_thread(answer_holds, workspace, allocation.allocation_id, rank, nonce):
                    await self._workspace_proven(allocation, rank, workspace)
                    return
            except OSError as error:
                seen = f"its answer in {workspace} cannot be read ({error.strerror})"
            pause = next(pauses, _PROOF_PAUSES_S[-1])
            if asyncio.get_running_loop().time() + pause > deadline:
                break
            await asyncio.sleep(pause)
        if await self._has_workspace(allocation, rank):
            return  # another report of it was proven meanwhile, and its answer taken away
        await self._workspace_failed(allocation, rank, "wrong_mount", seen)
        self._announce(allocation)

    async def _workspace_proven(self, allocation: Allocation, rank: int, workspace: Path) -> None:
        await self._store.run(Store.workspace, allocation.allocation_id, rank, True, "")
        situation = await self._store.run(Store.situation, allocation.workload_id)
        if situation is not None and situation.readiness().workspaces >= allocation.nodes:
            await asyncio.to_thread(remove_proofs, workspace, allocation.allocation_id, allocation.nodes)
        self._announce(allocation)

    async def _workspace_failed(self, allocation: Allocation, rank: int, code: str, detail: str) -> None:
        told = f"Worker {rank}: {code}" + (f" ({detail})" if detail else "")
        await self._store.run(Store.workspace, allocation.allocation_id, rank, False, told)
        await self._stop(allocation, Reason.WORKSPACE_UNREACHABLE, f"{told}.")

    async def _has_workspace(self, allocation: Allocation, rank: int) -> bool:
        situation = await self._store.run(Store.situation, allocation.workload_id)
        return situation is not None and any(w.rank == rank and w.workspace_ready for w in situation.workers)

    async def _kernel_started(self, allocation: Allocation, rank: int, message: Mapping[str, Any]) -> None:
        launch = await self._launch(allocation, message)
        pid = message.get("pid")
        if launch is not None and isinstance(pid, int):
            await self._store.run(Store.kernel_started, launch.launch_id, pid, self._clock())

    async def _kernel_exited(self, allocation: Allocation, rank: int, message: Mapping[str, Any]) -> None:
        launch = await self._launch(allocation, message)
        if launch is None or launch.exit is not None or await self._is_taken_along(launch, message):
            return
        ended = KernelExit(
            launch_id=launch.launch_id,
            exit_code=whole(message.get("exit_code")),
            signal=whole(message.get("signal")),
            tail=str(message.get("tail", "")),
            exited_at=self._clock(),
        )
        await self._store.run(Store.kernel_exited, ended)
        out_of_memory = message.get("out_of_memory") is True
        if out_of_memory:
            self._sessions.when_memory_ran_out(launch.launch_id)
            said = (allocation.workload_id, "kernel_out_of_memory", _ACTOR, Reason.OUT_OF_MEMORY, launch.kernel_id)
            await self._store.run(Store.record, *said, self._clock())
        # The first kernel of an allocation that never came up leaves nothing worth holding. Later on the allocation
        # stays: the person may start the kernel again in it.
        if launch.ready_at is None and allocation.phase is not Phase.ACTIVE and await self._is_alone(launch):
            reason = Reason.OUT_OF_MEMORY if out_of_memory else Reason.KERNEL_START_FAILED
            await self._stop(allocation, reason, exit_detail(ended))

    async def _is_taken_along(self, launch: LaunchRow, message: Mapping[str, Any]) -> bool:
        """Whether the allocation ends, and this start with it: the backend says why, and not the kernel's signal."""
        if message.get("with_worker") is not True or launch.ready_at is not None:
            return False
        workload = await self._store.run(Store.workload, launch.workload_id)
        return workload is not None and workload.desired is Desired.RUNNING

    async def _is_alone(self, launch: LaunchRow) -> bool:
        situation = await self._store.run(Store.situation, launch.workload_id)
        if situation is None:
            return False
        held = [binding for binding in situation.bindings if binding.released_at is None]
        return len(held) == 1 and held[0].launch_id == launch.launch_id

    async def _ended(self, allocation: Allocation, rank: int, message: Mapping[str, Any]) -> None:
        code = whole(message.get("exit_code"))
        reason = str(message.get("reason", ""))
        await self._store.run(Store.worker_ended, allocation.allocation_id, rank, code, reason, self._clock())

    async def _output_lost(self, allocation: Allocation, rank: int, message: Mapping[str, Any]) -> None:
        launch = await self._launch(allocation, message)
        if launch is None:
            return
        loss = OutputLoss(launch.launch_id, whole(message.get("messages")) or 0, whole(message.get("bytes")) or 0)
        _log.warning("session %s: %s", allocation.workload_id[:8], loss.sentence)
        told = f"worker {rank}: {loss.messages} messages, {loss.size} bytes"
        await self._store.run(Store.record, allocation.workload_id, "output_lost", _ACTOR, None, told, self._clock())
        self._sessions.when_output_lost(loss)

    async def _dialled(self, allocation: Allocation, rank: int, message: Mapping[str, Any]) -> None:
        """Which way led here, and which did not: what an admin needs to know of a network."""
        failed = message.get("failed")
        entries = [each for each in failed if isinstance(each, Mapping)] if isinstance(failed, list) else []
        told = [
            f"{str(each.get('address'))[:300]}: {str(each.get('cause'))[:300]}" for each in entries[:_MOST_FAILURES]
        ]
        detail = "; ".join([f"worker {rank} connected at {str(message.get('address'))[:300]}", *told])
        await self._store.run(Store.record, allocation.workload_id, "dialled", _ACTOR, None, detail, self._clock())

    async def _activity(self, allocation: Allocation, rank: int, message: Mapping[str, Any]) -> None:
        """Stamped with our clock: a node's own may be wrong."""
        launch = await self._launch(allocation, message)
        doing = message.get("doing")
        if launch is None or doing not in list(Activity):
            return
        began = message.get("began") is True
        if await self._store.run(leases.activity, launch.launch_id, Activity(doing), began, self._clock()):
            self._leases_changed()

    async def _keep_asked(self, allocation: Allocation, rank: int, message: Mapping[str, Any]) -> None:
        """A program beside a kernel asks that the kernel be kept: decided like any other keep, and answered."""
        answer = {"type": "task_refused", "request_id": str(message.get("request_id", ""))}
        launch = await self._launch(allocation, message)
        workload = await self._store.run(Store.workload, allocation.workload_id)
        if launch is None or workload is None:
            return
        actor = f"{workload.owner}, from inside the session"
        try:
            kept = await self._store.run(leases.keep, launch.kernel_id, actor, self._clock())
        except ProvisionerError as error:
            answer["sentence"] = str(error)
        else:
            answer |= {"type": "kept", "sentence": kept.sentence}
            self._leases_changed()
        self._outbox.send(allocation.allocation_id, rank, answer)

    async def _used(self, allocation: Allocation, rank: int, message: Mapping[str, Any]) -> None:
        workload = await self._store.run(Store.workload, allocation.workload_id)
        limit_mb = 0 if workload is None else self._memory_limit_mb(workload.profile)
        self._usage.note(allocation.workload_id, allocation.allocation_id, rank, message, limit_mb)

    async def _launch(self, allocation: Allocation, message: Mapping[str, Any]) -> LaunchRow | None:
        """The launch that a report names, if it belongs to the allocation that reports it."""
        launch = await self._store.run(Store.launch, str(message.get("launch_id", "")))
        if launch is None or launch.workload_id != allocation.workload_id:
            return None
        return launch

    async def _stop(self, allocation: Allocation, reason: Reason, detail: str) -> None:
        await self._sessions.request_stop(allocation.workload_id, reason, _ACTOR, detail)

    def _announce(self, allocation: Allocation) -> None:
        self._changes.announce(allocation.workload_id)
        self._poke(allocation.workload_id)
