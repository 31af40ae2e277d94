"""The control loop: reads what is known of every workload of ours, asks the backends, and lets `plan` decide.

Level-triggered by key: it wakes when somebody pokes a workload and at its period, and treats both alike. One workload
that fails is backed off alone; a backend that hangs stalls only its own. With no state on disk it makes none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from .batch_plan import asks_for_record, plan_batch
from .cancelling import ended
from .changes import ChangeBoard
from .config import Policy, SiteConfig
from .daemons import BEAT_EVERY_S, Daemon
from .deadline import bounded
from .errors import CouldNotAsk, IllegalTransition
from .executor import Executor
from .models import ExternalHandle, Kind, Phase
from .notes import as_asked
from .ownership import Ownership
from .pace import Pace, Pulse
from .plan import Action, Recover, Retire, plan
from .ports import Observation
from .pulse_report import PulseReport, Trouble, write_report
from .steady_clock import steady_time
from .store import Situation, Store, StoreThread
from .waiting import waiting_pause_s

_log = logging.getLogger(__name__)
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_ENDING_AGAIN_S = 1.0
_ADOPT_EVERY_S = 60.0
_LATEST_LANDING_SHOWS_S = 3600.0
_LAST_STEPS_S = 3.0  # for what is under way when the driving stops


@dataclass(frozen=True)
class _Pause:
    """`not_before`: of the loop's own clock."""

    failures: int
    error: str
    not_before: float


async def never(situation: Situation) -> bool:
    """Nothing is worth another allocation: for a process that holds no kernel."""
    return False


class Reconciler:
    def __init__(
        self,
        *,
        store: StoreThread,
        daemon: Daemon,
        config: SiteConfig,
        executor: Executor,
        changes: ChangeBoard,
        policy: Policy,
        can_recover: Callable[[Situation], Awaitable[bool]] = never,
        clock: Callable[[], float] = steady_time,
        adopts: Kind | None = None,
    ) -> None:
        """`adopts`: of what dead processes left, only this kind; None is everything."""
        self._store = store
        self._daemon = daemon
        self._config = config
        self._executor = executor
        self._changes = changes
        self._policy = policy
        self._can_recover = can_recover
        self._clock = clock
        self._pace = Pace(policy)
        self._ownership = Ownership(store, daemon, executor.let_go, changes.announce)
        self._adopts = adopts
        self._poked: set[str] = set()
        self._wake = asyncio.Event()
        self._busy: dict[str, bool] = {}  # workloads in a step -> poked meanwhile
        self._asking: dict[str, set[str]] = {}  # backends being asked -> workloads that want to know meanwhile
        self._tasks: set[asyncio.Task[None]] = set()
        self._pauses: dict[str, _Pause] = {}
        self._duplicates_asked: dict[str, float] = {}  # by allocation
        self._ending: set[str] = set()  # workloads that are looked at again soon
        self._loops: list[asyncio.Task[None]] = []

    # -- from outside ----------------------------------------------------------------------------------------------

    def poke(self, workload_id: str) -> None:
        """Something happened to this workload: look at it now. On the loop's thread."""
        self._poked.add(workload_id)
        self._wake.set()

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        """The last error of each workload whose steps fail, while that lasts."""
        ahead_s = time.time() - self._clock_s()
        return tuple(Trouble(key, it.failures, it.error, it.not_before + ahead_s) for key, it in self._pauses.items())

    @property
    def pulse(self) -> Pulse:
        """Counters of what the loop has done, and its last error."""
        return self._pace.pulse

    @property
    def silent_backends(self) -> tuple[str, ...]:
        """Those that did not answer the last question."""
        return self._pace.silent_backends

    @property
    def period_s(self) -> float:
        """How long from one look at everything to the next, as things are."""
        return self._pace.period_s

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._loops = [loop.create_task(self._run()), loop.create_task(self._keep_house())]

    async def stop(self) -> None:
        """Stop driving. What runs goes on; what is wished stopped stays wished; what has ended is cleared away."""
        loops, self._loops = self._loops, []
        await ended(loops)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LAST_STEPS_S)
        await ended(self._tasks)
        if loops and self._store.exists and self._daemon.is_registered:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._clear_debris(), _LAST_STEPS_S)

    async def turn(self, only: Sequence[str] | None = None, patient: bool = False) -> None:
        """Look at everything of ours once, or at `only` these; returns when every step of it is done.

        `patient`: a backend that did not answer lately is left alone for a while.
        """
        if not self._store.exists or not self._daemon.is_registered:
            return
        began = self._clock_s()
        await self._ownership.renew()
        situations = await self._store.run(Store.situations, self._daemon.daemon_id, only)
        if situations:
            self._daemon.has_work.set()
        elif only is None:
            self._daemon.has_work.clear()
        by_backend: dict[str, list[Situation]] = {}
        work = []
        for each in situations:
            if each.allocation.handle is None:
                work.append(self._step(each, None))
            else:
                by_backend.setdefault(each.allocation.backend, []).append(each)
        asked = {name for name in by_backend if not patient or self._pace.may_ask(name, began)}
        work += [self._ask_about(name, by_backend[name]) for name in asked]
        await asyncio.gather(*work)
        if only is not None:
            self._pace.count(pokes=1)
            return
        driven = [each.workload.workload_id for each in situations]
        self._pace.keep_only(driven)
        self._ownership.now_drives(driven)
        await self._end_duplicates(situations)
        await self._clear_debris()
        self._pace.turned(self._clock_s() - began)

    async def adopt(self, kind: Kind | None = None) -> None:
        """Take over what dead processes left. Sessions are wished stopped by that."""
        if not self._store.exists:
            return
        for workload_id in await self._daemon.adopt(kind):
            self.poke(workload_id)

    # -- the loops -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        last_full = self._clock_s() - self.period_s
        while True:
            pause = max(0.0, last_full + self.period_s - self._clock_s())
            try:
                await asyncio.wait_for(self._wake.wait(), pause)
            except TimeoutError:
                last_full = self._clock_s()
                self._spawn_turn(None)
                continue
            self._wake.clear()
            poked, self._poked = self._poked, set()
            if poked:  # else the pace alone has changed
                self._spawn_turn(sorted(poked))

    async def _keep_house(self) -> None:
        """Beat, and look for what dead processes left."""
        next_adoption = 0.0
        while True:
            try:
                await self._ownership.keep()
                await self._report()
                if self._clock_s() >= next_adoption:
                    next_adoption = self._clock_s() + _ADOPT_EVERY_S
                    await self.adopt(self._adopts)
            except Exception:
                _log.exception("the state could not be kept up to date")
            await asyncio.sleep(BEAT_EVERY_S)

    async def _report(self) -> None:
        """For people who cannot look into this process."""
        if self._daemon.is_registered:
            report = PulseReport(time.time(), self.period_s, self.pulse, self.troubles, self.silent_backends)
            writing = asyncio.create_task(asyncio.to_thread(write_report, self._daemon.report_path, report))
            self._tasks.add(writing)  # what is begun is waited for at the end: nothing is left behind
            writing.add_done_callback(self._tasks.discard)
            with contextlib.suppress(OSError):
                await asyncio.shield(writing)

    @staticmethod
    def _clock_s() -> float:
        return asyncio.get_running_loop().time()

    def _spawn_turn(self, only: Sequence[str] | None) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded_turn(only))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded_turn(self, only: Sequence[str] | None) -> None:
        period_s = self.period_s
        try:
            await self.turn(only, patient=only is None)
            if self.period_s < period_s:
                self._wake.set()
        except Exception as error:
            self._pace.failed(f"{type(error).__name__}: {error}", self._clock())
            _log.exception("a turn of the control loop failed; the next one tries again")

    # -- one turn --------------------------------------------------------------------------------------------------

    async def _ask_about(self, backend_name: str, group: Sequence[Situation]) -> None:
        """One batched question to one backend, then a step per workload."""
        ids = {each.workload.workload_id for each in group}
        if backend_name in self._asking:
            self._asking[backend_name] |= ids
            return
        self._asking[backend_name] = set()
        try:
            observations = await self._observe(group)
        finally:
            for workload_id in self._asking.pop(backend_name):
                self.poke(workload_id)
        await asyncio.gather(*(self._step(each, observations.get(each.allocation.handle)) for each in group))

    async def _observe(self, group: Sequence[Situation]) -> Mapping[ExternalHandle | None, Observation]:
        handles = [each.allocation.handle for each in group if each.allocation.handle is not None]
        try:
            backend = self._executor.backend_of(group[0].allocation)
            answer = await bounded(backend.observe(handles), self._policy.call_deadline_s)
            self._pace.answered(group[0].allocation.backend)
            return {handle: seen for handle, seen in answer.items() if isinstance(seen, Observation)}
        except Exception as error:  # could not ask: an answer of its own
            self._pace.did_not_answer(group[0].allocation.backend, self._clock_s())
            _log.warning("a backend could not be asked: %s", error)
            return {}

    async def _step(self, asked: Situation, observation: Observation | None) -> None:
        """One workload's step; its exceptions end here. `asked`: as it was when the backend was asked."""
        workload_id = asked.workload.workload_id
        if workload_id in self._busy:
            self._busy[workload_id] = True
            return
        trouble = self._pauses.get(workload_id)
        if trouble is not None and self._clock_s() < trouble.not_before:
            return
        self._busy[workload_id] = False
        try:
            await self._decide_and_act(asked, observation)
            self._pauses.pop(workload_id, None)
        except IllegalTransition as error:  # decided on rows that have moved on
            _log.info("a step came too late: %s", error)
            self._busy[workload_id] = True
        except Exception as error:
            self._back_off(workload_id, error)
        finally:
            if self._busy.pop(workload_id):
                self.poke(workload_id)

    async def _decide_and_act(self, asked: Situation, observation: Observation | None) -> None:
        workload_id = asked.workload.workload_id
        # Read again: the wish, or the owner, may have changed while the backend was asked.
        await self._ownership.renew()
        now = await self._store.run(Store.situation, workload_id)
        if now is None or await self._store.run(Store.driver_of, workload_id) != self._daemon.daemon_id:
            return
        self._pace.saw(now, self._clock())
        observation = as_asked(observation, asked.allocation, now.allocation)
        if now.workload.kind is Kind.BATCH:
            ended = await self._executor.command_exit(now.allocation) if asks_for_record(observation) else None
            actions = plan_batch(now.workload, now.allocation, observation, ended, self._clock(), self._policy)
        else:
            actions = await self._plan(now, observation)
        self._pace.count(steps=1)
        for action in actions:
            await self._executor.perform(now, action)
            self._pace.count(actions=1)
        if actions or now.allocation.phase is Phase.RELEASING:
            await self._follow_up(now)

    async def _plan(self, now: Situation, observation: Observation | None) -> tuple[Action, ...]:
        """Whether somebody still uses the session is asked only when that decides something."""
        args = (now.workload, now.allocation, observation, now.workers, now.bindings)
        actions = plan(*args, self._clock(), self._policy_for(now), recoverable=True)
        if any(isinstance(each, Recover | Retire) for each in actions) and not await self._can_recover(now):
            return plan(*args, self._clock(), self._policy_for(now))
        return actions

    async def _follow_up(self, before: Situation) -> None:
        """Tell who waits; go on at once after a change of phase; look again soon at what is ending."""
        workload_id = before.workload.workload_id
        now = await self._store.run(Store.situation, workload_id)
        if now is None:
            return
        if now != before:
            self._pace.saw(now, self._clock())
            self._changes.announce(workload_id)
        if now.allocation.allocation_id != before.allocation.allocation_id:
            await self._clear_quietly(before)
            self.poke(workload_id)
        elif now.allocation.phase.is_terminal:
            await self._clear_quietly(now)
        elif now.allocation.phase is not before.allocation.phase or now.workload.desired != before.workload.desired:
            self.poke(workload_id)
        elif now.allocation.phase is Phase.RELEASING and workload_id not in self._ending:
            self._ending.add(workload_id)
            asyncio.get_running_loop().call_later(_ENDING_AGAIN_S, self._look_again, workload_id)

    def _look_again(self, workload_id: str) -> None:
        self._ending.discard(workload_id)
        self.poke(workload_id)

    def _back_off(self, workload_id: str, error: Exception) -> None:
        before = self._pauses.get(workload_id)
        failures = before.failures + 1 if before else 1
        self._pace.failed(f"{type(error).__name__}: {error}", self._clock())
        pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(failures - 1, 10))
        self._pauses[workload_id] = _Pause(failures, f"{type(error).__name__}: {error}", self._clock_s() + pause)
        self._changes.announce(workload_id)  # why it waits may have been written down
        if isinstance(error, CouldNotAsk):
            _log.warning("workload %s waits %g s: %s", workload_id, pause, error)
        else:
            _log.error("the step of workload %s failed; it waits %g s", workload_id, pause, exc_info=error)

    async def _end_duplicates(self, situations: Sequence[Situation]) -> None:
        """An attempt that was sent more than once may have landed more than once, late: looked at ever less often."""
        known = {each.allocation.allocation_id for each in situations}
        self._duplicates_asked = {key: at for key, at in self._duplicates_asked.items() if key in known}
        for each in situations:
            allocation = each.allocation
            asked = self._duplicates_asked.get(allocation.allocation_id, 0.0)
            sent_again = allocation.submit_attempts > 1 and allocation.handle is not None
            age_s = max(0.0, self._clock() - allocation.created_at)
            pause_s = waiting_pause_s(age_s, None, self._policy.settle_window_s, _LATEST_LANDING_SHOWS_S)
            if not sent_again or self._clock() - asked < pause_s:
                continue
            self._duplicates_asked[allocation.allocation_id] = self._clock()
            try:
                await self._executor.end_strays(allocation)
            except Exception as error:
                _log.warning("it could not be asked whether a submission landed twice: %s", error)

    async def _clear_debris(self) -> None:
        for allocation in await self._store.run(Store.debris, self._daemon.daemon_id):
            try:
                await self._executor.clear(allocation)
            except Exception as error:
                _log.warning("an ended attempt could not be cleared yet: %s", error)

    async def _clear_quietly(self, now: Situation) -> None:
        self._pauses.pop(now.workload.workload_id, None)
        try:
            await self._executor.clear(now.allocation)
        except Exception as error:
            _log.warning("an ended attempt could not be cleared yet: %s", error)

    def _policy_for(self, now: Situation) -> Policy:
        profile = self._config.profiles.get(now.workload.profile)
        if profile is None:
            return self._policy
        return replace(self._policy, registration_timeout_s=float(profile.registration_timeout_s))
