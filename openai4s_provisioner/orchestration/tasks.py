"""The way in for tasks: steps in an allocation that a session already holds (INV-4: never a further allocation).

Judges and writes down; whoever drives the session hands the task to its worker. Every refusal is one sentence.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

from .commands import check_words
from .config import SiteConfig
from .daemons import is_driven
from .errors import Refused
from .models import Task
from .ports import AllocationBackend, RankLauncher, TaskRunner
from .reasons import Reason
from .store import Store, StoreThread, tasks
from .store.tasks import HeldKernel, NewTask

_log = logging.getLogger(__name__)


class TaskDesk:
    """Usable in the process that drives the session, and in any other of the same person."""

    def __init__(
        self,
        config: SiteConfig,
        backends: Mapping[str, AllocationBackend],
        store: StoreThread,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._backends = backends
        self._store = store
        self._clock = clock

    async def open(
        self,
        workload_id: str,
        actor: str,
        argv: Sequence[str],
        cwd: str,
        *,
        every_rank: bool = False,
        owner: str | None = None,
    ) -> Task:
        """Admit the task and write it down. Raises Refused, which is recorded with who and why.

        `every_rank`: once on each rank of the session, else on the first one only. `owner`: whose session it is to be,
        where somebody else may act for them; else the actor's own.
        """
        try:
            check_words(argv)
            ranks = await self._check_session(workload_id, owner or actor, every_rank)
            new = NewTask(uuid.uuid4().hex, workload_id, actor, tuple(argv), cwd, every_rank and ranks > 1)
            return await self._store.run(tasks.open_task, new, self._clock())
        except Refused as refusal:
            args_of_record = (workload_id, "task_refused", actor, refusal.reason, str(refusal), self._clock())
            await self._store.run(Store.record, *args_of_record)
            raise

    async def kernel_named(self, name: str) -> HeldKernel:
        """The kernel that holds a session now, by its id or its beginning, or by its notebook. Raises Refused."""
        return await self._store.run(tasks.kernel_named, name)

    async def _check_session(self, workload_id: str, owner: str, every_rank: bool) -> int:
        """How many ranks the session has."""
        workload = await self._store.run(Store.workload, workload_id)
        if workload is None:
            raise Refused(Reason.INVALID_SPEC, "There is no such session.")
        if workload.owner != owner:
            raise Refused.because(Reason.AUTHORIZATION_DENIED)
        profile = self._config.profiles.get(workload.profile)
        backend = None if profile is None else self._backends.get(profile.backend)
        if profile is None or not isinstance(backend, TaskRunner):
            raise Refused(
                Reason.BACKEND_REJECTED,
                f"Where sessions of profile {workload.profile!r} run, no task can be run beside the kernel. "
                "Run the command from the notebook, or submit it on its own.",
            )
        backend.check_task(profile)
        if every_rank and profile.nodes > 1 and not isinstance(backend, RankLauncher):
            raise Refused(
                Reason.BACKEND_REJECTED,
                f"Where sessions of profile {workload.profile!r} run, a task can be run on the first rank only. "
                "Leave out --ranks all.",
            )
        if not await is_driven(self._store, workload_id, self._clock()):
            raise Refused.because(Reason.SERVER_GONE)
        return profile.nodes
