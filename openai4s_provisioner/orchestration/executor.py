"""The one place that acts: carries out what `plan` decided, through the store, the backend and the tunnel.

Every step is safe to repeat. A call to a backend has a deadline; one that hangs, breaks or answers garbage counts as
"could not ask". Nothing here decides.
"""

from __future__ import annotations

import logging
import secrets
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from .attempt import AttemptPreparer
from .config import Policy, SiteConfig
from .daemons import Daemon
from .deadline import bounded
from .errors import CouldNotAsk, IllegalTransition, Refused
from .launches import LaunchBook
from .models import Allocation, CommandExit, Desired, ExternalHandle, Phase, Workload
from .notes import NoteEnd, NoteGone, NotePause, NoteWaiting, NoteWay, missing_rank
from .outbox import Outbox
from .phases import PhaseEvent
from .plan import (
    Action,
    BeginRelease,
    Cancel,
    LookUp,
    MarkActive,
    MarkGranted,
    MarkTerminal,
    RecordExit,
    Recover,
    RequestStop,
    Retire,
    SendEnd,
    Submit,
    after_empty_lookup,
)
from .ports import (
    AllocationBackend,
    Created,
    DuplicateFinder,
    Existing,
    Observation,
    Observed,
    Rejected,
    TerminalAllocationAcknowledger,
    Unknown,
)
from .reasons import Reason
from .steady_clock import steady_time
from .store import Ending, NewEpoch, Queued, Situation, Store, StoreThread, batches, epochs, schedule, tasks

_log = logging.getLogger(__name__)
T = TypeVar("T")
_ACTOR = "reconciler"
_FATE_UNKNOWN = "it is not known yet whether the request arrived; it is looked up, and nothing is submitted twice"
_NOT_SENT = "the place where it is to run does not answer; it is asked again"
_DIAGNOSTICS_DEADLINE_S = 5.0
_GONE_FOR_GOOD = 10  # so many times the debounce after its end, "found nowhere" is believed
_NOT_OVER = frozenset({Observed.PENDING, Observed.RUNNING, Observed.PAUSED, Observed.ENDING, Observed.UNKNOWN})
_ISOLATION_AND_FILES_DEADLINE_S = 180.0


class Executor:
    def __init__(
        self,
        *,
        store: StoreThread,
        daemon: Daemon,
        config: SiteConfig,
        policy: Policy,
        backends: Mapping[str, AllocationBackend],
        preparer: AttemptPreparer,
        outbox: Outbox,
        launches: LaunchBook,
        turned_away: Callable[[Allocation], str] = lambda allocation: "",
        end_moved: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = steady_time,
    ) -> None:
        """`turned_away`: why workers of an attempt may not have come in."""
        self._turned_away = turned_away
        self._store = store
        self._end_moved = end_moved
        self._daemon = daemon
        self._config = config
        self._policy = policy
        self._backends = backends
        self._preparer = preparer
        self._outbox = outbox
        self._launches = launches
        self._clock = clock
        self._strays: set[tuple[str, ExternalHandle]] = set()  # cancelled landings of allocations: each recorded once
        self._told: set[tuple[str, int]] = set()  # workers that were handed their "end"
        self._steps: dict[type[Any], Callable[[Situation, Any], Awaitable[None]]] = {
            Submit: self._submit,
            LookUp: self._look_up,
            MarkGranted: lambda now, _: self._advance(now, PhaseEvent.GRANTED),
            MarkActive: lambda now, _: self._advance(now, PhaseEvent.READY),
            BeginRelease: lambda now, _: self._advance(now, PhaseEvent.RELEASE),
            Retire: self._retire,
            Recover: self._recover,
            SendEnd: self._send_end,
            Cancel: self._cancel,
            RequestStop: self._request_stop,
            NoteGone: lambda now, note: self._store.run(Store.note_gone, now.allocation.allocation_id, note.since),
            NoteWaiting: self._note_waiting,
            NoteEnd: self._note_end,
            NotePause: self._note_pause,
            NoteWay: self._note_way,
            MarkTerminal: self._mark_terminal,
            RecordExit: self._record_exit,
        }

    async def perform(self, situation: Situation, action: Action) -> None:
        """Carry one action out. Raises CouldNotAsk when the backend could not be asked; then nothing has moved."""
        await self._steps[type(action)](situation, action)

    def backend_of(self, allocation: Allocation) -> AllocationBackend:
        backend = self._backends.get(allocation.backend)
        if backend is None:
            raise CouldNotAsk(f"the backend {allocation.backend!r} is not installed")
        return backend

    def let_go(self, workload_id: str, allocation_id: str) -> None:
        """Another process drives it now: forget what only this one's memory holds."""
        self._outbox.forget(allocation_id)
        self._launches.pop(workload_id, None)

    async def clear(self, allocation: Allocation) -> None:
        """Take away what an ended attempt left outside the store, then acknowledge it. Safe to repeat."""
        workload = await self._store.run(Store.workload, allocation.workload_id)
        now = await self._store.run(Store.allocation, allocation.allocation_id)
        if workload is None or now is None:
            return
        allocation = now
        self._outbox.forget(allocation.allocation_id)
        if workload.phase.is_terminal:
            self._launches.pop(allocation.workload_id, None)
        self._told = {each for each in self._told if each[0] != allocation.allocation_id}
        await bounded(self._preparer.clear(workload, allocation), self._policy.call_deadline_s)
        await self._make_sure(workload, allocation)
        backend = self._backends.get(allocation.backend)
        if allocation.handle is not None and isinstance(backend, TerminalAllocationAcknowledger):
            await self._ask(backend.acknowledge_terminal(allocation.handle))
        await self._store.run(Store.debris_cleared, allocation.allocation_id)
        self._strays = {each for each in self._strays if each[0] != allocation.allocation_id}

    async def _make_sure(self, workload: Workload, allocation: Allocation) -> None:
        """What was found nowhere, or may still land, can turn up: for a while it is cancelled, and not forgotten."""
        never_answered = allocation.handle is None and allocation.submit_attempts > 0
        wanted_no_more = workload.desired is Desired.STOPPED or workload.reason is Reason.BACKEND_SUBMISSION_UNKNOWN
        may_land = allocation.submit_attempts > 1 or (never_answered and wanted_no_more)
        if allocation.gone_since is None and not may_land:
            return
        strays = await self.end_strays(allocation)
        if allocation.gone_since is not None and allocation.handle is not None:
            await self._ask_to_end(allocation)
            strays = [*strays, allocation.handle]
        seen = await self._ask(self.backend_of(allocation).observe(strays)) if strays else {}
        if any(seen[handle].state in _NOT_OVER for handle in strays if handle in seen):
            raise CouldNotAsk("what turned up again is not seen to be over")
        window = max(self._policy.gone_debounce_s, self._policy.settle_window_s)
        if not self._has_ended(seen, allocation) and self._age(allocation) < _GONE_FOR_GOOD * window:
            raise CouldNotAsk("what was found nowhere is asked after for a while")

    def _age(self, allocation: Allocation) -> float:
        return self._clock() - (allocation.ended_at or 0.0)

    @staticmethod
    def _has_ended(seen: Mapping[ExternalHandle, Observation], allocation: Allocation) -> bool:
        """Its one submission has a handle, and its end was said in so many words."""
        own = seen.get(allocation.handle) if allocation.handle is not None else None
        return own is not None and own.state is not Observed.GONE and allocation.submit_attempts <= 1

    async def end_strays(self, allocation: Allocation) -> list[ExternalHandle]:
        """Cancel every landing of this attempt's token but the one that counts, and say so. All that were found."""
        backend = self.backend_of(allocation)
        if isinstance(backend, DuplicateFinder):
            found = list(await self._ask(backend.find_all_by_token(allocation.token)))
        else:
            one = await self._ask(backend.find_by_token(allocation.token))
            found = [] if one is None else [one]
        strays = [handle for handle in found if handle != allocation.handle]
        for handle in strays:
            await self._ask(backend.cancel(handle))
            if (allocation.allocation_id, handle) not in self._strays:
                self._strays.add((allocation.allocation_id, handle))
                said = (allocation.workload_id, "stray_cancelled", _ACTOR, Reason.DUPLICATE_SUBMISSION, handle.value)
                await self._store.run(Store.record, *said, self._clock())
        return strays

    # -- submitting ------------------------------------------------------------------------------------------------

    async def _submit(self, now: Situation, _: Submit) -> None:
        workload, allocation = now.workload, now.allocation
        try:
            backend = self.backend_of(allocation)
            profile = self._config.profile_for(workload.profile, workload.spec)
            if profile is None:
                raise Refused(Reason.INVALID_SPEC, f"There is no profile {workload.profile!r} any more.")
            preparing = self._preparer.prepare(workload, allocation, profile, backend)
            request = await bounded(preparing, _ISOLATION_AND_FILES_DEADLINE_S)
        except Refused as refusal:
            await self._fail(allocation, refusal.reason, refusal.detail)
            return
        except Exception as error:  # an attempt that cannot be prepared ends with a reason; it does not loop
            _log.exception("an attempt could not be prepared")
            await self._fail(allocation, Reason.BOOTSTRAP_FAILED, f"The attempt could not be prepared: {error}")
            return
        begun = await self._store.run(Store.begin_submit, allocation, self._daemon.daemon_id, self._clock())
        if not begun:  # the wish, the driver or the fate changed meanwhile; the next turn reads it
            return
        await self._take_answer(allocation, await self._submitted(backend, request))

    async def _submitted(self, backend: AllocationBackend, request: Any) -> Any:
        if not self._daemon.is_current:  # it slept between the commit and the call, and may no longer be the owner
            return Unknown(request.token, "this process was away before it could be sent")
        try:
            return await bounded(backend.submit(request), self._policy.call_deadline_s)
        except Exception as error:  # whatever broke, it may have landed
            _log.warning("the fate of a submission is unknown: %s", error)
            return Unknown(request.token, str(error))

    async def _take_answer(self, allocation: Allocation, answer: Any) -> None:
        if isinstance(answer, Created | Existing):
            await self._store.run(Store.handle_known, allocation.allocation_id, answer.handle)
        elif isinstance(answer, Rejected):
            await self._fail(allocation, answer.reason, answer.sentence, answer.backend_detail)
        elif isinstance(answer, Unknown) and not answer.was_sent:
            queued = Queued(_NOT_SENT, answer.backend_detail)
            await self._store.run(schedule.take_submission_back, allocation.allocation_id, queued)
            raise CouldNotAsk(answer.backend_detail)  # so that it is asked less and less often
        else:
            detail = answer.backend_detail if isinstance(answer, Unknown) else f"not an answer: {answer!r}"
            args = (allocation.allocation_id, detail, self._clock(), _FATE_UNKNOWN)
            await self._store.run(Store.submit_unknown, *args)

    async def _look_up(self, now: Situation, _: LookUp) -> None:
        asked_at = self._clock()
        handle = await self._ask(self.backend_of(now.allocation).find_by_token(now.allocation.token))
        if isinstance(handle, ExternalHandle):
            await self._store.run(Store.handle_known, now.allocation.allocation_id, handle)
            return
        if handle is not None:
            raise CouldNotAsk(f"not an answer: {handle!r}")
        again = await self._store.run(Store.situation, now.workload.workload_id)
        if again is None:
            return
        for action in after_empty_lookup(again.workload, again.allocation, asked_at, self._policy):
            await self.perform(again, action)

    async def _fail(self, allocation: Allocation, reason: Reason, detail: str, backend_detail: str = "") -> None:
        ending = Ending(Phase.FAILED, reason, detail, None, backend_detail)
        await self._store.run(Store.end, allocation.allocation_id, ending, self._clock())

    # -- while it lives --------------------------------------------------------------------------------------------

    async def _advance(self, now: Situation, event: PhaseEvent) -> None:
        await self._store.run(Store.advance, now.allocation.allocation_id, event, self._clock())

    async def _request_stop(self, now: Situation, action: RequestStop) -> None:
        detail = action.detail
        if action.reason is Reason.WORKER_REGISTRATION_TIMEOUT:
            rank = missing_rank(now.allocation, now.workers)
            said = (detail, self._turned_away(now.allocation), await self._worker_log(now.allocation, rank))
            detail = " ".join(part for part in said if part)
        args = (now.workload.workload_id, action.reason, detail, _ACTOR, self._clock())
        await self._store.run(Store.request_stop, *args)

    async def _note_waiting(self, now: Situation, action: NoteWaiting) -> None:
        queued = Queued(action.waiting, action.backend_detail, action.estimated_start, action.position)
        await self._store.run(schedule.note_queued, now.allocation.allocation_id, queued, self._clock())

    async def _note_pause(self, now: Situation, action: NotePause) -> None:
        await self._store.run(schedule.note_pause, now.allocation, action.is_paused, self._clock())
        self._outbox.hold(now.allocation.allocation_id, action.is_paused)

    async def _note_end(self, now: Situation, action: NoteEnd) -> None:
        await self._store.run(schedule.note_end, now.allocation.allocation_id, action.ends_at, action.extensions)
        self._end_moved()

    async def _note_way(self, now: Situation, action: NoteWay) -> None:
        asking = self._preparer.failed_ways(now.allocation.allocation_id, action.rank)
        try:
            failed = await bounded(asking, _DIAGNOSTICS_DEADLINE_S)
        except CouldNotAsk:  # no reason is better than a step that hangs
            return
        who = "it" if now.allocation.nodes == 1 else f"worker {action.rank}"
        told = f"{who} cannot reach this server at {failed}" if failed else ""
        if told != now.allocation.waiting:
            await self._store.run(schedule.note_way, now.allocation.allocation_id, told)

    # -- the cancel barrier ----------------------------------------------------------------------------------------

    async def _send_end(self, now: Situation, action: SendEnd) -> None:
        allocation_id = now.allocation.allocation_id
        if action.first:
            await self._cancel_tasks(allocation_id)
        message = {"type": "end", "reason": str(now.workload.reason or "")}
        for worker in now.workers:
            key = (allocation_id, worker.rank)
            untold = worker.ended_at is None and key not in self._told
            if untold and self._outbox.send_if_known(allocation_id, worker.rank, message):
                self._told.add(key)
        if action.first:
            await self._store.run(Store.drain_begun, allocation_id, self._clock())

    async def _cancel_tasks(self, allocation_id: str) -> None:
        """Running steps are stopped before what they may still use goes away."""
        if await self._store.run(tasks.cancel_all, allocation_id, _ACTOR, self._clock()) > 0:
            self._outbox.send_if_known(allocation_id, 0, {"type": "task_cancel_all"})

    async def _cancel(self, now: Situation, _: Cancel) -> None:
        await self._ask_to_end(now.allocation)
        await self._store.run(Store.cancel_asked, now.allocation.allocation_id, self._clock())

    async def _ask_to_end(self, allocation: Allocation) -> None:
        if allocation.handle is None:
            raise CouldNotAsk("there is nothing to cancel yet")
        await self._ask(self.backend_of(allocation).cancel(allocation.handle))

    async def _mark_terminal(self, now: Situation, action: MarkTerminal) -> None:
        if action.phase is Phase.LOST:  # found nowhere is not proven dead: never just forgotten
            await self._ask_to_end(now.allocation)
        detail = action.detail
        if action.reason is Reason.WORKER_REGISTRATION_TIMEOUT and action.reason is not now.workload.reason:
            detail = f"{detail} {self._turned_away(now.allocation)}".strip()
        if (
            action.phase.has_failed
            and not action.is_explained
            and not now.workers
            and now.allocation.handle is not None
        ):
            detail = f"{detail} {await self._last_words(now.allocation)}".strip()
        ending = Ending(action.phase, action.reason, detail, action.backend_reason, action.backend_detail)
        await self._store.run(Store.end, now.allocation.allocation_id, ending, self._clock())

    # -- recovery --------------------------------------------------------------------------------------------------

    async def _retire(self, now: Situation, action: Retire) -> None:
        args = (now.allocation.allocation_id, action.reason, action.detail, self._clock())
        await self._store.run(epochs.retire, *args)

    async def _recover(self, now: Situation, action: Recover) -> None:
        """Cancel the old allocation whatever is said of it, then end it and open the next epoch in one commit."""
        workload_id, old = now.workload.workload_id, now.allocation
        launch = self._launches.get(workload_id)
        if launch is None:
            raise IllegalTransition("what its kernel is started with is not known here")
        await self._ask_to_end(old)
        launch_id = uuid.uuid4().hex
        held = [binding.kernel_id for binding in now.bindings if binding.released_at is None]
        new = NewEpoch(uuid.uuid4().hex, secrets.token_hex(24), dict.fromkeys(held, launch_id))
        ended = action.ending
        ending = Ending(ended.phase, ended.reason, ended.detail, ended.backend_reason, ended.backend_detail)
        self._launches[workload_id] = replace(launch, launch_id=launch_id)
        args = (old.allocation_id, ending, new, self._daemon.daemon_id, self._clock())
        try:
            await self._store.run(epochs.open_epoch, *args)
        except Exception:
            self._launches[workload_id] = launch
            raise

    async def command_exit(self, allocation: Allocation) -> CommandExit | None:
        """What the worker of a BATCH wrote down when its command ended."""
        return await self._preparer.command_exit(allocation.allocation_id)

    async def _record_exit(self, now: Situation, action: RecordExit) -> None:
        await self._store.run(batches.record_exit, now.allocation.allocation_id, action.ended)

    async def _last_words(self, allocation: Allocation) -> str:
        """What the allocation itself logged, for an end that no worker explained. Never an obstacle."""
        told = await self._worker_log(allocation)
        if told or allocation.handle is None:
            return told
        try:
            call = self.backend_of(allocation).diagnostics(allocation.handle)
            tail = (await bounded(call, _DIAGNOSTICS_DEADLINE_S)).log_tail.strip()
        except Exception as error:
            _log.info("no diagnostics: %s", error)
            return ""
        return f"Its log ends: {tail}" if tail else ""

    async def _worker_log(self, allocation: Allocation, rank: int = 0) -> str:
        tail = await self._preparer.log_tail(allocation.allocation_id, rank)
        return f"The worker's log ends: {tail}" if tail else ""

    async def _ask(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            return await bounded(call, self._policy.call_deadline_s)
        except CouldNotAsk:
            raise
        except Exception as error:
            raise CouldNotAsk(f"the backend broke: {error}") from error
