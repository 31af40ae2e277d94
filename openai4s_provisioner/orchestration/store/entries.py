"""What is handed to the store as one value: everything that one commit writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..models import BatchSpec, LeasePolicy, Phase, SessionSpec
from ..reasons import Reason


@dataclass(frozen=True)
class NewSession:
    """Everything that one transaction writes when a session is opened."""

    workload_id: str
    allocation_id: str
    token: str
    owner: str
    profile: str
    backend: str
    nodes: int
    spec: SessionSpec
    kernel_id: str
    launch_id: str
    leases: LeasePolicy
    max_sessions: int


@dataclass(frozen=True)
class NewBatch:
    """Everything that one transaction writes when a BATCH is submitted."""

    workload_id: str
    allocation_id: str
    token: str
    owner: str
    profile: str
    backend: str
    spec: BatchSpec
    max_batches: int
    nodes: int = 1


@dataclass(frozen=True)
class Ending:
    """How an attempt ended: the phase, our reason for a person, and what the backend said."""

    phase: Phase
    reason: Reason | None = None
    detail: str = ""
    backend_reason: Reason | None = None
    backend_detail: str = ""


@dataclass(frozen=True)
class Queued:
    """What is known of an attempt that waits."""

    waiting: str
    backend_detail: str
    estimated_start: float | None = None
    position: int | None = None


@dataclass(frozen=True)
class NewEpoch:
    """The attempt that follows a lost one: its own token, and a new start for every kernel that is held."""

    allocation_id: str
    token: str
    launches: Mapping[str, str]  # kernel id -> launch id
