"""The seams of the core: what a backend must do, and what it may do in addition.

A backend translates its scheduler's words through one table into ours; its raw text is an opaque `backend_detail`.
All methods are coroutines and none blocks the loop. "I could not ask" is never "no": it is `Unknown`, or `CouldNotAsk`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from .models import ExternalHandle, ResourceProfile
from .reasons import Reason


@dataclass(frozen=True)
class AllocationRequest:
    """One submission, frozen. Rendering it is pure; sending it is three lines.

    `program` is what runs in the allocation once per rank, without the interpreter and without ``--rank N``:
    the backend puts its own Python before it and the rank behind it. Secrets are only in files below `attempt_dir`.
    """

    token: str  # unguessable, durable before submit; the backend must be able to find the allocation by it
    allocation_id: str
    workload_id: str
    profile: ResourceProfile
    program: tuple[str, ...]  # (<worker zipapp>, "worker", <attempt dir>)
    attempt_dir: Path


@dataclass(frozen=True)
class Created:
    handle: ExternalHandle


@dataclass(frozen=True)
class Existing:
    """The token was submitted before; this is its allocation. Nothing new was made."""

    handle: ExternalHandle


@dataclass(frozen=True)
class Rejected:
    """A definite no. Nothing exists under this token and nothing will.

    `sentence`: what a person reads behind the reason's own sentence; do not repeat that one.
    """

    reason: Reason
    sentence: str
    backend_detail: str = ""


@dataclass(frozen=True)
class Unknown:
    """It may or may not have landed. Carries the token, by which it is looked up before anything is sent again.

    `was_sent` False is a promise that nothing was: the backend could not even ask, and is tried again.
    """

    token: str
    backend_detail: str = ""
    was_sent: bool = True


SubmitResult = Created | Existing | Rejected | Unknown


class Observed(enum.StrEnum):
    """What a backend may say of one allocation."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"  # it has its place, and the site does not let it run for now; it goes on by itself
    ENDING = "ENDING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    GONE = "GONE"  # asked, answered, and no trace of it: needs a second witness
    UNKNOWN = "UNKNOWN"  # could not ask


@dataclass(frozen=True)
class Observation:
    state: Observed
    reason: Reason | None = None
    waiting: str = ""  # why it waits, in our words
    backend_detail: str = ""  # raw text: shown to the owner, never interpreted
    exit_code: int | None = None
    hosts: tuple[str, ...] = ()
    estimated_start: float | None = None  # of one that waits, in seconds since the Unix epoch
    position: int | None = None  # of one that waits: the first one is 1
    ends_at: float | None = None  # of one that runs: its own end, in seconds since the Unix epoch
    explanation: str = ""  # of one that ended: what the reason does not say, and what to do, as sentences for everybody


@dataclass(frozen=True)
class Diagnostics:
    """For a person's eyes: the last lines of an allocation's log and where it lies."""

    log_tail: str = ""
    log_paths: tuple[Path, ...] = ()
    backend_detail: str = ""


@runtime_checkable
class AllocationBackend(Protocol):
    """What every backend does. `name` is the entry point's name."""

    name: str

    def check_profile(self, profile: ResourceProfile) -> None:
        """Refuse, with ConfigError, a profile whose backend options this backend does not know. Pure."""

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        """Submit once. Idempotent per token: the same token again is Existing, never a second allocation."""

    async def observe(self, handles: Sequence[ExternalHandle]) -> Mapping[ExternalHandle, Observation]:
        """One batched question. Every handle asked for is in the answer. Never raises for one bad handle."""

    async def cancel(self, handle: ExternalHandle) -> None:
        """Ask for the end of the whole tree. Idempotent. Raises CouldNotAsk when it cannot be asked."""

    async def find_by_token(self, token: str) -> ExternalHandle | None:
        """The allocation submitted under this token, or None when there is none. Raises CouldNotAsk when unsure."""

    async def diagnostics(self, handle: ExternalHandle) -> Diagnostics: ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class IsolationVerdict:
    """Whether allocations cannot reach each other, proven with this exact configuration."""

    verified: bool
    sentence: str = ""  # when not: what is missing and the remedy
    attacks: Mapping[str, bool] = field(default_factory=dict)  # attack name -> was it stopped


@runtime_checkable
class SessionIsolationProvider(Protocol):
    """Optional: a backend whose per-allocation isolation can be verified. Without it, SESSION is refused."""

    async def isolates_session_credentials(
        self, profile: ResourceProfile, private_network: bool = False
    ) -> IsolationVerdict:
        """`private_network`: for a kernel that can only do TCP, whose sandbox has a network of its own."""


@runtime_checkable
class MaskProvider(Protocol):
    """Optional: a backend whose machines have places that no session may see, besides those that none ever sees."""

    def masks(self, profile: ResourceProfile) -> Sequence[str]:
        """Absolute paths; what a machine does not have is passed over. Pure. Raises ConfigError as `check_profile`."""


@runtime_checkable
class TerminalAllocationAcknowledger(Protocol):
    """Optional: a backend that keeps receipts until the durable store shows the allocation terminal."""

    async def acknowledge_terminal(self, handle: ExternalHandle) -> None: ...


@runtime_checkable
class RunsHere(Protocol):
    """Optional: a backend whose allocations run on this very machine, so that workers reach our Unix socket."""

    runs_here: bool


@runtime_checkable
class DuplicateFinder(Protocol):
    """Optional: for a scheduler where one token may have landed more than once, and that can name every landing."""

    async def find_all_by_token(self, token: str) -> Sequence[ExternalHandle]:
        """Every allocation under this token that is not over. Raises CouldNotAsk when unsure."""


@runtime_checkable
class TaskRunner(Protocol):
    """Optional: a backend whose allocations can hold further steps beside the kernel.

    The worker on the first rank starts them. Without it a task is refused, never submitted.
    """

    def check_task(self, profile: ResourceProfile) -> None:
        """Refuse, with Refused, a profile whose allocations cannot hold a step. Pure."""


@runtime_checkable
class RankLauncher(Protocol):
    """Optional: a backend of allocations with several ranks, where a step can run once on each of them."""

    def step_prefix(self, profile: ResourceProfile) -> Sequence[str]:
        """The words that, put before an argv on the first rank, run it once on every rank of the held allocation.

        Each copy gets ``--rank N`` behind its own words, the rank that the worker there has. They begin at once, beside
        whatever runs; what they print comes out unchanged on stdout; on stderr the launcher tells what went wrong,
        which is the cause of a bad end; the exit status is the worst of theirs; SIGTERM ends them. Travels in the
        attempt's file, so it holds no secret. Pure.
        """


@runtime_checkable
class WalltimeExtender(Protocol):
    """Optional: a backend where a person may be able to move the end of a running allocation."""

    def can_extend(self, profile: ResourceProfile) -> bool:
        """Whether this may succeed here at all. Pure, and no promise."""

    async def extend(self, handle: ExternalHandle, profile: ResourceProfile, seconds: int) -> float:
        """Move the end by so many seconds; the new end. Raises Refused with a sentence for a person, or CouldNotAsk."""


@runtime_checkable
class BoundedInTime(Protocol):
    """Optional: a backend whose own options say how long one question may take at the longest."""

    answer_bounds: Mapping[str, float]  # option -> seconds; their sum is the longest that an answer may take


class WorkerChannel(Protocol):
    """The way to the workers of an allocation; the gateway implements it. Callable from any thread, never blocks."""

    def send(self, allocation_id: str, rank: int, message: Mapping[str, Any]) -> bool:
        """Hand a control message over. False when no worker of that rank is known."""

    def hold(self, allocation_id: str, is_paused: bool) -> None:
        """Whether its links stay, however long they are silent, because the site has paused it. Idempotent."""

    def forget(self, allocation_id: str) -> None:
        """Close the links of an allocation that is over. Idempotent."""


class BackendFactory(Protocol):
    """What the entry point group ``openai4s_provisioner.backends`` names: a callable, loaded lazily.

    `options` is the ``[backends.NAME]`` table of cluster.toml, unread; wrong keys raise ConfigError.
    """

    def __call__(self, *, state_dir: Path, exchange_dir: Path, options: Mapping[str, Any]) -> AllocationBackend: ...
