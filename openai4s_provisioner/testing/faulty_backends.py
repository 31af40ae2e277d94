"""Backends in memory, on the real seam, each named after its failure. Reading the class names is reading the faults.

They keep a list of every allocation that ever existed, so that a test can count leaks and doubles. Time comes from a
clock that the test moves; nothing here starts a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openai4s_provisioner.orchestration.errors import ConfigError, CouldNotAsk
from openai4s_provisioner.orchestration.models import ExternalHandle, ResourceProfile
from openai4s_provisioner.orchestration.ports import (
    AllocationRequest,
    Created,
    Diagnostics,
    Existing,
    IsolationVerdict,
    Observation,
    Observed,
    Rejected,
    SubmitResult,
    Unknown,
)
from openai4s_provisioner.orchestration.reasons import Reason

_RUNS = Observation(Observed.RUNNING)
_PROVEN = IsolationVerdict(True)
_OVER = frozenset({Observed.COMPLETED, Observed.FAILED, Observed.CANCELLED})


@dataclass
class FakeAllocation:
    """One thing that a backend really runs."""

    token: str
    handle: ExternalHandle
    visible_at: float
    seen: Observation = _RUNS

    @property
    def is_over(self) -> bool:
        return self.seen.state in _OVER


class ManualClock:
    """Seconds since the Unix epoch, moved by the test alone."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class ObedientBackend:
    """Does what the contract says. The others differ from it in one thing each."""

    clock: Callable[[], float]
    name: str = "fake"
    allocations: list[FakeAllocation] = field(default_factory=list)
    submits: int = 0
    observes: int = 0
    cancels: int = 0
    acknowledged: list[ExternalHandle] = field(default_factory=list)
    verdict: IsolationVerdict = _PROVEN
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    @property
    def running(self) -> list[FakeAllocation]:
        return [each for each in self.allocations if not each.is_over]

    def check_profile(self, profile: ResourceProfile) -> None:
        for key in profile.backend_options:
            raise ConfigError(f"{key} is not a key of the backend {self.name}. Remove it.", key)

    async def isolates_session_credentials(
        self, profile: ResourceProfile, private_network: bool = False
    ) -> IsolationVerdict:
        return self.verdict

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        self.submits += 1
        return self._land(request.token)

    async def observe(self, handles: Sequence[ExternalHandle]) -> Mapping[ExternalHandle, Observation]:
        self.observes += 1
        return {handle: self._seen(handle) for handle in handles}

    async def cancel(self, handle: ExternalHandle) -> None:
        self.cancels += 1
        self._end(handle)

    async def find_by_token(self, token: str) -> ExternalHandle | None:
        return next((a.handle for a in self.allocations if a.token == token and a.visible_at <= self.clock()), None)

    async def acknowledge_terminal(self, handle: ExternalHandle) -> None:
        self.acknowledged.append(handle)

    async def diagnostics(self, handle: ExternalHandle) -> Diagnostics:
        return Diagnostics(log_tail="the last line")

    async def close(self) -> None:
        pass

    def say(self, state: Observed, reason: Reason | None = None, exit_code: int | None = None) -> None:
        """What the newest allocation is in from now on."""
        self.allocations[-1].seen = Observation(state, reason, exit_code=exit_code)

    def _land(self, token: str, delay_s: float = 0.0) -> SubmitResult:
        for each in self.allocations:
            if each.token == token:
                return Existing(each.handle)
        handle = ExternalHandle(self.name, f"alloc-{next(self._numbers)}")
        self.allocations.append(FakeAllocation(token, handle, self.clock() + delay_s))
        return Created(handle)

    def _seen(self, handle: ExternalHandle) -> Observation:
        found = next((each for each in self.allocations if each.handle == handle), None)
        return Observation(Observed.GONE) if found is None else found.seen

    def _end(self, handle: ExternalHandle) -> None:
        for each in self.allocations:
            if each.handle == handle and not each.is_over:
                each.seen = Observation(Observed.CANCELLED)


@dataclass
class BackendWhoseSubmitLandsLate(ObedientBackend):
    """Says "I do not know"; the allocation can be found only `delay_s` later."""

    delay_s: float = 30.0

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        self.submits += 1
        self._land(request.token, self.delay_s)
        return Unknown(request.token, "timed out")


@dataclass
class BackendWhoseSubmitLandsTwice(ObedientBackend):
    """The first submission lands long after everybody has given it up, beside the second one under the same token."""

    delay_s: float = 100.0

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        self.submits += 1
        handle = ExternalHandle(self.name, f"alloc-{next(self._numbers)}")
        first = self.submits == 1
        self.allocations.append(FakeAllocation(request.token, handle, self.clock() + (self.delay_s if first else 0.0)))
        return Unknown(request.token) if first else Created(handle)

    async def find_all_by_token(self, token: str) -> Sequence[ExternalHandle]:
        now = self.clock()
        return [a.handle for a in self.allocations if a.token == token and a.visible_at <= now and not a.is_over]


@dataclass
class BackendThatNamesOneLandingOnly(BackendWhoseSubmitLandsTwice):
    """Like the one before, but it can name only the oldest landing that it sees: it is no DuplicateFinder."""

    find_all_by_token = None  # type: ignore[assignment]


@dataclass
class BackendWhoseAnswerIsLost(ObedientBackend):
    """The submission arrives; the answer does not."""

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        await super().submit(request)
        raise ConnectionResetError("the answer was lost")


@dataclass
class BackendThatLosesTheFirstSubmission(ObedientBackend):
    """The first submission never arrives anywhere; nobody can say so."""

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        if self.submits == 0:
            self.submits += 1
            return Unknown(request.token)
        return await super().submit(request)


@dataclass
class BackendThatLosesEverySubmission(ObedientBackend):
    async def submit(self, request: AllocationRequest) -> SubmitResult:
        self.submits += 1
        return Unknown(request.token)


@dataclass
class BackendThatCannotEvenSend(ObedientBackend):
    """While `silent`, nothing leaves this machine, and it knows that."""

    silent: bool = True
    refusals: int = 0

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        if self.silent:
            self.refusals += 1
            return Unknown(request.token, "no route", was_sent=False)
        return await super().submit(request)


@dataclass
class BackendThatAnswersGarbage(ObedientBackend):
    """The submission arrives; what comes back is no answer at all."""

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        await super().submit(request)
        return "Submitted!"  # type: ignore[return-value]


@dataclass
class BackendThatRejects(ObedientBackend):
    async def submit(self, request: AllocationRequest) -> SubmitResult:
        self.submits += 1
        return Rejected(Reason.UNSCHEDULABLE, "No machine has that much memory.", "raw words")


@dataclass
class BackendWhoseLookupFails(BackendWhoseAnswerIsLost):
    """Nobody can say whether the submission arrived. It did."""

    lookup_works: bool = False

    async def find_by_token(self, token: str) -> ExternalHandle | None:
        if not self.lookup_works:
            raise CouldNotAsk("the directory is down")
        return await super().find_by_token(token)


@dataclass
class BackendThatCannotBeAsked(ObedientBackend):
    """Submits, and from then on does not answer while `silent`."""

    silent: bool = True

    async def observe(self, handles: Sequence[ExternalHandle]) -> Mapping[ExternalHandle, Observation]:
        self.observes += 1
        if self.silent:
            raise CouldNotAsk("no route")
        return await super().observe(handles)

    async def cancel(self, handle: ExternalHandle) -> None:
        if self.silent:
            raise CouldNotAsk("no route")
        await super().cancel(handle)


@dataclass
class BackendThatForgetsOnce(ObedientBackend):
    """Says "gone" while `forgets`, about allocations that run on."""

    forgets: bool = False

    def _seen(self, handle: ExternalHandle) -> Observation:
        return Observation(Observed.GONE) if self.forgets else super()._seen(handle)


@dataclass
class BackendThatHangsForEver(ObedientBackend):
    """Every question after the submission hangs, and resists being cancelled."""

    async def observe(self, handles: Sequence[ExternalHandle]) -> Mapping[ExternalHandle, Observation]:
        self.observes += 1
        await _hang()
        return {}


@dataclass
class BackendWhoseSubmitHangs(ObedientBackend):
    """The submission arrives; the call never returns."""

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        await super().submit(request)
        await _hang()
        raise AssertionError("unreachable")


@dataclass
class BackendWhoseCancelDoesNothingAtFirst(ObedientBackend):
    """Accepts a cancel and carries out only the `idle_cancels` + 1st."""

    idle_cancels: int = 4

    async def cancel(self, handle: ExternalHandle) -> None:
        self.cancels += 1
        if self.cancels > self.idle_cancels:
            self._end(handle)


@dataclass
class BackendWhoseCancelAnswerIsLost(ObedientBackend):
    """The cancel takes effect; the answer does not come."""

    async def cancel(self, handle: ExternalHandle) -> None:
        await super().cancel(handle)
        raise CouldNotAsk("timed out")


@dataclass
class BackendThatPurgesWhatEnded(ObedientBackend):
    """An ended allocation leaves no trace: it is "gone" at once."""

    def _seen(self, handle: ExternalHandle) -> Observation:
        seen = super()._seen(handle)
        return Observation(Observed.GONE) if seen.state in _OVER else seen


async def _hang() -> None:
    """Resists the first attempt to cancel it; the second is the end of the test."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await asyncio.Event().wait()
