"""What a person may ask of their own workloads: look, stop, keep, extend, run a task.

Whatever belongs to others is not there for them. Runs on the control thread's loop, with or without the parts that
drive sessions. It states wishes and reads facts; who asked is recorded.
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .app_values import SessionChange
from .orchestration.choice import ResourceChoice
from .orchestration.errors import NotFound, Refused, SessionEnded
from .orchestration.models import Kind, ResourceProfile, Task
from .orchestration.reasons import Reason
from .orchestration.session import ended_error
from .orchestration.store import Store, leases, overview, tasks
from .orchestration.store.overview import Seen
from .orchestration.tasks import TaskDesk
from .orchestration.usage import Usage
from .parts import AdmissionParts, RunningParts

REMEMBERED_S = 24 * 3600.0  # how long an ended workload is shown
_MOST_SHOWN = 200
_WORDS = {Kind.SESSION: "session", Kind.BATCH: "command"}


@dataclass(frozen=True)
class View:
    """One workload for a person: the rows, the profile as it has it, and what its kernels say, by kernel id."""

    seen: Seen
    profile: ResourceProfile | None  # None: it is no longer offered
    changes: Mapping[str, SessionChange] = field(default_factory=dict)
    can_extend: bool = False  # whether asking may succeed at all
    usage: Usage | None = None  # as its workers told lately

    @property
    def kind(self) -> Kind:
        return self.seen.now.workload.kind

    @property
    def is_over(self) -> bool:
        return self.seen.now.workload.phase.is_terminal


@dataclass(frozen=True)
class Overview:
    """Everything that is open or ended lately, the newest first. `silent`: backends that did not answer lately."""

    views: tuple[View, ...] = ()
    silent: tuple[str, ...] = ()


class PersonDesk:
    def __init__(self, admitting: AdmissionParts, running: RunningParts | None) -> None:
        self._config = admitting.config
        self._backends = admitting.backends
        self._store = admitting.store
        self._walltime = admitting.walltime
        self._running = running
        self._owner = getpass.getuser()

    # -- looking ---------------------------------------------------------------------------------------------------

    async def overview(self) -> Overview:
        """Makes no state where there is none."""
        if not self._store.exists:
            return Overview()
        since = time.time() - REMEMBERED_S
        found = await self._store.run(overview.seen_of, self._owner, since, _MOST_SHOWN)
        silent = () if self._running is None else self._running.reconciler.silent_backends
        return Overview(tuple(map(self._view, found)), silent)

    async def view(self, workload_id: str, kind: Kind) -> View:
        """Raises NotFound, for other people's workloads as well."""
        found = await self._store.run(overview.seen, workload_id) if self._store.exists else None
        workload = None if found is None else found.now.workload
        if found is None or workload is None or workload.owner != self._owner or workload.kind is not kind:
            raise NotFound(f"There is no {_WORDS[kind]} {workload_id[:64]!r}. It may have been removed.")
        return self._view(found)

    # -- wishes ----------------------------------------------------------------------------------------------------

    async def stop(self, workload_id: str, kind: Kind, actor: str) -> View:
        """Raises NotFound, or SessionEnded for one that is over. Whoever drives it carries that out."""
        view = await self.view(workload_id, kind)
        if view.is_over:
            raise ended_error(view.seen.now.workload)
        if self._running is not None:
            await self._running.sessions.request_stop(workload_id, Reason.USER_CANCELLED, actor)
        else:
            args = (workload_id, Reason.USER_CANCELLED, "", actor, time.time())
            await self._store.run(Store.request_stop, *args)
        return await self.view(workload_id, kind)

    async def keep(self, workload_id: str, actor: str) -> View:
        """Renew the idle clocks of all its kernels. Raises NotFound, Refused, or SessionEnded when it is too late."""
        view = await self.view(workload_id, Kind.SESSION)
        held = [each.kernel_id for each in view.seen.now.bindings if each.released_at is None]
        if view.is_over or not held:
            raise ended_error(view.seen.now.workload)
        for kernel_id in held:
            await self._store.run(leases.keep, kernel_id, actor, time.time())
        if self._running is not None:
            self._running.reclaimer.loop.poke()
        return await self.view(workload_id, Kind.SESSION)

    async def extend(self, workload_id: str, seconds: int, actor: str) -> View:
        """Raises NotFound, or Refused where it cannot be extended."""
        await self.view(workload_id, Kind.SESSION)
        desk = self._walltime if self._running is None else self._running
        await desk.extend(workload_id, seconds, actor, owner=self._owner)
        return await self.view(workload_id, Kind.SESSION)

    def check_choice(self, profile_name: str, choice: ResourceChoice) -> ResourceProfile:
        """The profile that is meant. Raises NotFound for an unknown one, Refused for what it does not allow."""
        profile = self._config.profiles.get(profile_name or self._config.default_profile)
        if profile is None:
            known = ", ".join(sorted(self._config.profiles))
            raise NotFound(f"There is no profile {profile_name[:64]!r}. Choose one of: {known}.")
        if (sentence := profile.refusal_of(choice)) is not None:
            raise Refused(Reason.POLICY_REJECTED, sentence)
        return profile

    # -- tasks -----------------------------------------------------------------------------------------------------

    async def tasks(self, workload_id: str) -> list[Task]:
        """Of one session, the newest first. Raises NotFound."""
        await self.view(workload_id, Kind.SESSION)
        return await self._store.run(tasks.of_workload, workload_id)

    async def open_task(self, workload_id: str, argv: Sequence[str], actor: str) -> Task:
        """Raises NotFound, Refused."""
        view = await self.view(workload_id, Kind.SESSION)
        desk = TaskDesk(self._config, self._backends, self._store)
        task = await desk.open(workload_id, actor, argv, view.seen.now.workload.spec.cwd, owner=self._owner)
        self._hand_over()
        return task

    async def cancel_task(self, task_id: str, actor: str) -> Task:
        """Wish it ended. Raises NotFound, or SessionEnded for one that is over."""
        task = await self._store.run(tasks.task, task_id) if self._store.exists else None
        workload = None if task is None else await self._store.run(Store.workload, task.workload_id)
        if task is None or workload is None or workload.owner != self._owner:
            raise NotFound(f"There is no task {task_id[:64]!r}. It may have been removed.")
        if task.ended_at is not None:
            raise SessionEnded(Reason.USER_CANCELLED, "The task is over already.")
        await self._store.run(tasks.cancel, task_id, actor, time.time())
        self._hand_over()
        return await self._store.run(tasks.task, task_id) or task

    def _hand_over(self) -> None:
        if self._running is not None:
            self._running.tasks.look_again()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _view(self, seen: Seen) -> View:
        workload = seen.now.workload
        profile = self._config.profile_for(workload.profile, workload.spec)
        usage = None if self._running is None else self._running.usage.of(workload.workload_id)
        return View(seen, profile, self._changes(seen), self._walltime.can_extend(workload.profile), usage)

    def _changes(self, seen: Seen) -> dict[str, SessionChange]:
        if self._running is None:
            return {}
        told = ((each.kernel_id, self._running.kernels.change(each.kernel_id)) for each in seen.now.bindings)
        workload_id = seen.now.workload.workload_id
        return {name: change for name, change in told if change is not None and change.workload_id == workload_id}
