"""The way in for extensions: a person asks that a running allocation end later, where its backend lets them.

Usable in the process that drives the session and in any other of the same person. It asks the backend, writes the new
end down with who asked, and refuses in one sentence; it never promises an end that the backend did not say.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .config import SiteConfig
from .errors import CouldNotAsk, ProvisionerError, Refused
from .models import Desired, Phase, ResourceProfile
from .ports import AllocationBackend, WalltimeExtender
from .reasons import Reason
from .store import Situation, Store, StoreThread, schedule
from .walltime import moment

_log = logging.getLogger(__name__)
LEAST_S, MOST_S = 1, 366 * 24 * 3600


@dataclass(frozen=True)
class Extended:
    """An extension that counted."""

    workload_id: str
    ends_at: float

    @property
    def sentence(self) -> str:
        return f"This session now runs until {moment(self.ends_at)}."


class WalltimeDesk:
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

    def can_extend(self, profile_name: str) -> bool:
        """Whether asking may succeed at all."""
        found = self._extender(profile_name)
        return found is not None and found[0].can_extend(found[1])

    async def extend(self, workload_id: str, seconds: int, actor: str, *, owner: str | None = None) -> Extended:
        """Raises Refused, which is recorded with who and why, and changes nothing then.

        `owner`: whose session it is to be, where somebody else may act for them; else the actor's own.
        """
        try:
            return await self._extend(workload_id, seconds, actor, owner or actor)
        except ProvisionerError as error:
            reason = error.reason if isinstance(error, Refused) else Reason.BACKEND_UNAVAILABLE
            if self._store.exists:
                record = (workload_id, "extension_refused", actor, reason, str(error), self._clock())
                await self._store.run(Store.record, *record)
            raise

    async def _extend(self, workload_id: str, seconds: int, actor: str, owner: str) -> Extended:
        if not LEAST_S <= seconds <= MOST_S:
            raise Refused(
                Reason.INVALID_SPEC,
                f"A session cannot be extended by {seconds} seconds. Ask for one second to a year.",
            )
        situation = await self._running(workload_id, owner)
        allocation = situation.allocation
        found = self._extender(situation.workload.profile)
        if found is None or not found[0].can_extend(found[1]) or allocation.handle is None:
            raise Refused(
                Reason.POLICY_REJECTED,
                f"Sessions of profile {situation.workload.profile!r} cannot be extended here: their time limit is "
                "fixed when they begin. Save your work, and start again with a longer profile if there is one.",
            )
        backend, profile = found
        try:
            async with asyncio.timeout(self._config.policy.call_deadline_s):
                ends_at = await backend.extend(allocation.handle, profile, seconds)
        except (CouldNotAsk, TimeoutError) as error:
            _log.warning("whether a session was extended is not known: %s", str(error) or "no answer came in time")
            raise Refused(
                Reason.BACKEND_UNAVAILABLE,
                "Whether the session was extended is not known: no answer came in time. Its end is shown as soon as it "
                "can be asked for; look there before you ask again.",
            ) from error
        await self._store.run(schedule.extended, allocation, ends_at, seconds, actor, self._clock())
        return Extended(workload_id, ends_at)

    async def _running(self, workload_id: str, owner: str) -> Situation:
        situation = await self._store.run(Store.situation, workload_id) if self._store.exists else None
        if situation is None:
            raise Refused(Reason.INVALID_SPEC, "There is no such session.")
        if situation.workload.owner != owner:
            raise Refused(Reason.AUTHORIZATION_DENIED, Reason.AUTHORIZATION_DENIED.sentence)
        runs = situation.allocation.phase in (Phase.GRANTED, Phase.ACTIVE)
        if not runs or situation.workload.desired is Desired.STOPPED:
            raise Refused(
                Reason.INVALID_SPEC,
                f"The session runs nowhere that could end later (it is {situation.allocation.phase}).",
            )
        return situation

    def _extender(self, profile_name: str) -> tuple[WalltimeExtender, ResourceProfile] | None:
        profile = self._config.profiles.get(profile_name)
        backend = None if profile is None else self._backends.get(profile.backend)
        return (backend, profile) if profile is not None and isinstance(backend, WalltimeExtender) else None
