"""What a person may ask of their own workloads: look, stop, keep. Whatever belongs to others is not there for them.

Runs on the control thread's loop, with or without the parts that drive sessions. It states wishes and reads facts.
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from .app_values import SessionChange
from .orchestration.errors import NotFound
from .orchestration.models import Kind, ResourceProfile
from .orchestration.store import overview
from .orchestration.store.overview import Seen
from .parts import AdmissionParts, RunningParts

REMEMBERED_S = 24 * 3600.0  # how long an ended workload is shown
_MOST_SHOWN = 200


@dataclass(frozen=True)
class View:
    """One workload for a person: the rows, the profile it runs with, and what its kernels say, by kernel id."""

    seen: Seen
    profile: ResourceProfile | None  # None: it is no longer offered
    changes: Mapping[str, SessionChange] = field(default_factory=dict)

    @property
    def workload_id(self) -> str:
        return self.seen.now.workload.workload_id

    @property
    def kind(self) -> Kind:
        return self.seen.now.workload.kind


@dataclass(frozen=True)
class Overview:
    """Everything that is open or ended lately, the newest first. `silent`: backends that did not answer lately."""

    views: tuple[View, ...] = ()
    silent: tuple[str, ...] = ()


class PersonDesk:
    def __init__(self, admitting: AdmissionParts, running: RunningParts | None) -> None:
        self._config = admitting.config
        self._store = admitting.store
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

    def _view(self, seen: Seen) -> View:
        profile = self._config.profiles.get(seen.now.workload.profile)
        return View(seen, profile, self._changes(seen))

    def _changes(self, seen: Seen) -> dict[str, SessionChange]:
        if self._running is None:
            return {}
        told = ((each.kernel_id, self._running.kernels.change(each.kernel_id)) for each in seen.now.bindings)
        workload_id = seen.now.workload.workload_id
        return {name: change for name, change in told if change is not None and change.workload_id == workload_id}


_WORDS = {Kind.SESSION: "session", Kind.BATCH: "command"}
