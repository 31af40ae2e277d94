"""The vocabulary every part shares: workloads, allocations, profiles and phases.

Values only: nothing here reads a clock, a file or the network, and nothing here knows which backend exists.
`Phase.is_terminal` and `Phase.is_active_allocation` are the only copies of those two sets in Python;
a test holds the schema's partial unique index to them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .choice import CHOOSABLE, ResourceChoice, ResourceLimits, refusal
from .reasons import Reason


class Kind(enum.StrEnum):
    SESSION = "SESSION"
    BATCH = "BATCH"


class Desired(enum.StrEnum):
    """The wish. Written by people and policies, never by an observer."""

    RUNNING = "RUNNING"
    STOPPED = "STOPPED"


class Phase(enum.StrEnum):
    """The fact. Written by observers, never by a person's request."""

    SUBMITTING = "SUBMITTING"
    PENDING = "PENDING"
    GRANTED = "GRANTED"
    ACTIVE = "ACTIVE"
    RELEASING = "RELEASING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    LOST = "LOST"

    @property
    def is_terminal(self) -> bool:
        return self in _TERMINAL

    @property
    def is_active_allocation(self) -> bool:
        return self not in _TERMINAL

    @property
    def has_failed(self) -> bool:
        """It ended, and nobody wished it."""
        return self in (Phase.FAILED, Phase.LOST)


_TERMINAL = frozenset({Phase.COMPLETED, Phase.FAILED, Phase.CANCELLED, Phase.LOST})


class WorkspacePolicy(enum.StrEnum):
    ROOT = "root"
    NOTEBOOK = "notebook"
    PRIVATE = "private"


class ReadyCheck(enum.StrEnum):
    EXECUTE = "execute"
    KERNEL_INFO = "kernel_info"


class KernelTransport(enum.StrEnum):
    """How a kernel can be reached where it runs. One that can only do TCP gets a network of its own (no way out)."""

    IPC = "ipc"
    TCP = "tcp"

    @property
    def needs_private_network(self) -> bool:
        return self is KernelTransport.TCP


class WorkerTransport(enum.StrEnum):
    """How workers reach the server: AUTO is the Unix socket where they run on this machine, else the network."""

    AUTO = "auto"
    UNIX = "unix"
    TCP = "tcp"


@dataclass(frozen=True)
class LeasePolicy:
    """Lease clocks of a profile, in seconds."""

    idle_ttl_s: int = 7200
    max_lifetime_s: int = 172800
    warn_s: int = 600
    busy_counts: bool = True


@dataclass(frozen=True)
class ResourceProfile:
    """What a person may ask for by name. `backend_options` goes unread to the backend, which validates it."""

    name: str
    backend: str
    display_name: str = ""
    cpus: int = 1
    memory_mb: int = 0  # 0 = no limit stated
    gpus: int = 0
    walltime_s: int = 0  # 0 = the backend's default
    max_walltime_s: int = 0  # as far as a person may extend one; 0 = not at all
    nodes: int = 1
    leases: LeasePolicy = field(default_factory=LeasePolicy)
    workspace: WorkspacePolicy = WorkspacePolicy.ROOT
    share: tuple[str, ...] = ()
    share_read_only: tuple[str, ...] = ()
    ready_check: ReadyCheck = ReadyCheck.EXECUTE
    registration_timeout_s: int = 300
    spool_mb: int = 2048  # of output, kept on the node for readers that are away
    transport: WorkerTransport = WorkerTransport.AUTO
    limits: ResourceLimits = field(default_factory=ResourceLimits)  # of what a person may choose
    backend_options: Mapping[str, Any] = field(default_factory=dict)

    def refusal_of(self, choice: ResourceChoice) -> str | None:
        """Why a person cannot have this, in one sentence; None when they can."""
        return refusal(choice, {name: getattr(self, name) for name in CHOOSABLE}, self.limits, self.name)

    def with_choice(self, choice: ResourceChoice) -> ResourceProfile:
        """The profile as one session has it."""
        return replace(self, **choice.chosen) if choice.chosen else self


@dataclass(frozen=True)
class KernelLaunch:
    """One start of one kernel process. Travels in a 0600 file or over the tunnel, never in the store.

    `argv` may hold the placeholder ``{connection_file}``; the inner replaces it.
    """

    launch_id: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    key: str  # HMAC key of the kernel's messages, as in the connection file
    signature_scheme: str = "hmac-sha256"
    kernel_name: str = ""
    transport: KernelTransport = KernelTransport.IPC
    curve_publickey: str = ""  # CurveZMQ pair, shared by both ends, where the site requires it; "" = none
    curve_secretkey: str = ""


@dataclass(frozen=True)
class SessionSpec:
    """The durable part of a session's request: no secret, no environment, no argv."""

    workspace: str
    cwd: str
    kernel_name: str
    notebook_path: str = ""
    installation: tuple[str, ...] = ()  # folders the kernel's program is installed in
    resources: tuple[str, ...] = ()  # the kernelspec's own folder
    choice: ResourceChoice = field(default_factory=ResourceChoice)

    def __post_init__(self) -> None:
        for name in ("installation", "resources"):  # lists, when read back from JSON
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if isinstance(self.choice, dict):
            object.__setattr__(self, "choice", ResourceChoice(**self.choice))


@dataclass(frozen=True)
class BatchSpec:
    """The durable part of a BATCH's request. `argv` is a person's own words: stored, and shown to no scheduler.

    Its environment may hold secrets, so it is no part of this.
    """

    workspace: str
    cwd: str
    argv: tuple[str, ...]
    notebook_path: str = ""  # the notebook that the command runs, if it does
    installation: tuple[str, ...] = ()  # folders the command is installed in
    resources: tuple[str, ...] = ()  # single files and folders that it needs besides

    def __post_init__(self) -> None:
        for name in ("argv", "installation", "resources"):  # lists, when read back from JSON
            object.__setattr__(self, name, tuple(getattr(self, name)))


WorkloadSpec = SessionSpec | BatchSpec


@dataclass(frozen=True)
class CommandExit:
    """How a BATCH's command ended, as the worker beside it wrote it down."""

    exit_code: int | None
    signal: int | None
    ended_at: float
    asked: str = ""  # why the worker was asked to end it; "" = it ended by itself
    reason: Reason | None = None  # why it was not run at all
    detail: str = ""
    started_at: float | None = None

    @property
    def sentence(self) -> str:
        if self.reason is not None:
            return self.detail
        if self.signal is not None:
            return f"The command ended by signal {self.signal}."
        return f"The command ended with exit code {self.exit_code}."


@dataclass(frozen=True)
class Workload:
    """One thing a person wants to run. Phase repeats that of its newest allocation."""

    workload_id: str
    kind: Kind
    owner: str
    profile: str
    desired: Desired
    phase: Phase
    epoch: int
    spec: WorkloadSpec
    created_at: float  # seconds since the Unix epoch, as every *_at here
    reason: Reason | None = None  # ours when we asked for the stop, else the observed one
    reason_detail: str = ""
    actor: str = ""  # who asked for the stop (INV-12)
    desired_at: float = 0.0  # when the wish was last written


@dataclass(frozen=True)
class ExternalHandle:
    """A backend's own name for an allocation. Opaque to everything but that backend."""

    backend: str
    value: str


@dataclass(frozen=True)
class Allocation:
    """One attempt: one epoch, one submission token, at most one external handle."""

    allocation_id: str
    workload_id: str
    epoch: int
    token: str
    backend: str
    phase: Phase
    created_at: float
    handle: ExternalHandle | None = None
    nodes: int = 1
    submit_unknown_since: float | None = None
    gone_since: float | None = None
    granted_at: float | None = None
    ended_at: float | None = None
    reason: Reason | None = None
    backend_detail: str = ""
    submit_attempts: int = 0
    waiting: str = ""  # why it waits, in our words
    drain_since: float | None = None  # the workers were told to end
    cancel_asked_at: float | None = None  # the backend last accepted a cancel
    estimated_start: float | None = None  # while it waits: when the backend expects it to begin
    estimate_as_of: float | None = None  # when that was last heard
    position: int | None = None  # how many wait before it, itself included
    ends_at: float | None = None  # its own end, which no lease moves, as the backend knows it
    end_warned_for: float | None = None  # the end that a person was warned of
    extensions: int = 0  # how often a person has put its end off
    paused_since: float | None = None  # the site does not let it run; None when it may
    resumed_at: float | None = None  # when it was last seen to go on after that


@dataclass(frozen=True)
class Task:
    """A step in the allocation that a session holds. It ends with it at the latest."""

    task_id: str
    workload_id: str
    allocation_id: str
    actor: str
    argv: tuple[str, ...]
    cwd: str
    created_at: float
    cancel_asked_at: float | None = None
    sent_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    detail: str = ""
    every_rank: bool = False  # else on the first one only


class LinkState(enum.StrEnum):
    """Whether a worker talks to us, in the gateway's words."""

    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    GONE = "gone"


@dataclass(frozen=True)
class Registration:
    """What a burned credential proved: which rank of which attempt has dialled in."""

    workload_id: str
    allocation_id: str
    epoch: int
    rank: int


@dataclass(frozen=True)
class WorkerRow:
    """One rank of one allocation, as far as it has shown itself."""

    allocation_id: str
    rank: int
    host: str
    registered_at: float
    connected: bool
    workspace_ready: bool = False
    workspace_detail: str = ""
    link_since: float = 0.0  # since when it has been connected, or has not
    ended_at: float | None = None  # it said that it ends: the witness of an exit
    exit_code: int | None = None
    exit_reason: str = ""


@dataclass(frozen=True)
class KernelExit:
    """How one kernel process ended. `tail` holds the last lines it printed outside the protocol."""

    launch_id: str
    exit_code: int | None
    signal: int | None
    tail: str
    exited_at: float


@dataclass(frozen=True)
class OutputLoss:
    """Output of one start of a kernel that no reader took in time, and that there was no room left to keep."""

    launch_id: str
    messages: int
    size: int  # bytes

    @property
    def sentence(self) -> str:
        return (
            f"{self.messages} messages of output ({self.size / 1e6:.1f} MB) were lost: nobody read them, and what is "
            "kept meanwhile has a limit (spool_mb of the profile). A notice stands where they were."
        )


@dataclass(frozen=True)
class Binding:
    """One kernel inside a workload."""

    kernel_id: str
    workload_id: str
    notebook_path: str
    bound_at: float
    launch_id: str = ""
    kernel_ready_at: float | None = None
    released_at: float | None = None
