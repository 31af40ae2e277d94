"""From rows to the values of `models`, in one place each."""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import asdict, dataclass

from ..models import (
    Allocation,
    BatchSpec,
    Binding,
    CommandExit,
    Desired,
    ExternalHandle,
    KernelExit,
    Kind,
    LinkState,
    Phase,
    SessionSpec,
    WorkerRow,
    Workload,
    WorkloadSpec,
)
from ..readiness import Queue, Readiness
from ..reasons import Reason


@dataclass(frozen=True)
class Situation:
    """All that is known of one workload at one moment: what `plan` decides on."""

    workload: Workload
    allocation: Allocation
    workers: tuple[WorkerRow, ...]
    bindings: tuple[Binding, ...]
    launches: tuple[LaunchRow, ...] = ()  # the current one of every binding

    def launch(self, kernel_id: str) -> LaunchRow | None:
        """The current start of a kernel."""
        return next((launch for launch in self.launches if launch.kernel_id == kernel_id), None)

    @property
    def interrupted_since(self) -> float | None:
        """Since when a worker that is still wanted has had no connection; None while all have one."""
        away = [worker.link_since for worker in self.workers if not worker.connected and worker.ended_at is None]
        return min(away, default=None)

    @property
    def pause(self) -> str:
        """For a person: that it is paused, and since when; "" for one that is not."""
        since, phase = self.allocation.paused_since, self.workload.phase
        if since is None or phase not in (Phase.GRANTED, Phase.ACTIVE):
            return ""
        at = time.strftime("%H:%M", time.localtime(since))
        return f"Paused by the site since {at}; it goes on by itself, with everything that is in the kernel's memory."

    @property
    def interrupted_place(self) -> str:
        """What has no connection, for a person: of several ranks, which one on which machine."""
        away = [worker for worker in self.workers if not worker.connected and worker.ended_at is None]
        if self.allocation.nodes == 1 or not away:
            return "the session's machine"
        named = ", ".join(f"worker {worker.rank} on {worker.host}" for worker in away[:3])
        more = f" and {len(away) - 3} more" if len(away) > 3 else ""
        return f"{named}{more} (of {self.allocation.nodes})"

    def readiness(self, kernel_id: str = "") -> Readiness:
        """The four conditions, for one kernel or for whichever answers."""
        held = [b for b in self.bindings if b.released_at is None and kernel_id in ("", b.kernel_id)]
        allocation, workers = self.allocation, self.workers
        ended = next((f"worker {w.rank} on {w.host} has ended" for w in workers if w.ended_at is not None), "")
        unready = next((w.workspace_detail for w in workers if not w.workspace_ready and w.workspace_detail), ended)
        return Readiness(
            granted=allocation.granted_at is not None,
            workers=sum(1 for worker in workers if worker.ended_at is None),
            workspaces=sum(1 for worker in workers if worker.workspace_ready and worker.ended_at is None),
            ranks=allocation.nodes,
            kernel=any(binding.kernel_ready_at is not None for binding in held),
            detail=(waiting_words(allocation) if len(workers) < allocation.nodes else "") or unready,
        )


@dataclass(frozen=True)
class LaunchRow:
    """One start of one kernel process, as far as it has shown itself."""

    launch_id: str
    workload_id: str
    kernel_id: str
    created_at: float
    isolated: bool | None
    pid: int | None
    started_at: float | None
    ready_at: float | None
    exit: KernelExit | None


@dataclass(frozen=True)
class DaemonRow:
    """One process that drives workloads, alive or not."""

    daemon_id: str
    host: str
    boot_id: str
    pid: int
    beat_at: float
    retired_at: float | None


@dataclass(frozen=True)
class EventRow:
    at: float
    workload_id: str | None
    kind: str
    actor: str
    reason: Reason | None
    detail: str


def waiting_words(allocation: Allocation) -> str:
    """Why an allocation waits, and until when, for a person; "" for one that does not."""
    queue = Queue(allocation.waiting, allocation.position, allocation.estimated_start, allocation.estimate_as_of)
    return queue.words


def spec_text(spec: WorkloadSpec) -> str:
    return json.dumps(asdict(spec), sort_keys=True)


def _reason(value: str | None) -> Reason | None:
    return None if value is None else Reason(value)


def _spec_from(row: sqlite3.Row) -> WorkloadSpec:
    content = json.loads(row["spec"])
    return BatchSpec(**content) if row["kind"] == Kind.BATCH else SessionSpec(**content)


def workload_from(row: sqlite3.Row) -> Workload:
    ours = row["stop_reason"] is not None
    return Workload(
        workload_id=row["workload_id"],
        kind=Kind(row["kind"]),
        owner=row["owner"],
        profile=row["profile"],
        desired=Desired(row["desired"]),
        desired_at=row["desired_at"],
        phase=Phase(row["phase"]),
        epoch=row["epoch"],
        spec=_spec_from(row),
        created_at=row["created_at"],
        reason=_reason(row["stop_reason"] if ours else row["reason"]),
        reason_detail=row["stop_detail"] or row["reason_detail"],
        actor=row["stop_actor"],
    )


def allocation_from(row: sqlite3.Row) -> Allocation:
    return Allocation(
        allocation_id=row["allocation_id"],
        workload_id=row["workload_id"],
        epoch=row["epoch"],
        token=row["token"],
        backend=row["backend"],
        phase=Phase(row["phase"]),
        created_at=row["created_at"],
        handle=None if row["handle"] is None else ExternalHandle(row["backend"], row["handle"]),
        nodes=row["nodes"],
        submit_unknown_since=row["submit_unknown_since"],
        gone_since=row["gone_since"],
        granted_at=row["granted_at"],
        ended_at=row["ended_at"],
        reason=_reason(row["reason"]),
        backend_detail=row["backend_detail"],
        submit_attempts=row["submit_attempts"],
        waiting=row["waiting"],
        drain_since=row["drain_since"],
        cancel_asked_at=row["cancel_asked_at"],
        estimated_start=row["estimated_start"],
        estimate_as_of=row["estimate_as_of"],
        position=row["position"],
        ends_at=row["ends_at"],
        extensions=row["extensions"],
        paused_since=row["paused_since"],
        resumed_at=row["resumed_at"],
        end_warned_for=row["end_warned_for"],
    )


def worker_from(row: sqlite3.Row) -> WorkerRow:
    link = LinkState(row["link"])
    return WorkerRow(
        allocation_id=row["allocation_id"],
        rank=row["rank"],
        host=row["host"],
        registered_at=row["registered_at"],
        connected=link is LinkState.CONNECTED,
        workspace_ready=bool(row["workspace_ready"]),
        workspace_detail=row["workspace_detail"],
        link_since=row["link_since"],
        ended_at=row["ended_at"],
        exit_code=row["exit_code"],
        exit_reason=row["exit_reason"],
    )


def binding_from(row: sqlite3.Row) -> Binding:
    return Binding(
        kernel_id=row["kernel_id"],
        workload_id=row["workload_id"],
        notebook_path=row["notebook_path"],
        bound_at=row["bound_at"],
        launch_id=row["launch_id"],
        kernel_ready_at=row["kernel_ready_at"],
        released_at=row["released_at"],
    )


def launch_from(row: sqlite3.Row) -> LaunchRow:
    ended = None
    if row["exited_at"] is not None:
        ended = KernelExit(row["launch_id"], row["exit_code"], row["exit_signal"], row["exit_tail"], row["exited_at"])
    return LaunchRow(
        launch_id=row["launch_id"],
        workload_id=row["workload_id"],
        kernel_id=row["kernel_id"],
        created_at=row["created_at"],
        isolated=None if row["isolated"] is None else bool(row["isolated"]),
        pid=row["pid"],
        started_at=row["started_at"],
        ready_at=row["ready_at"],
        exit=ended,
    )


def daemon_from(row: sqlite3.Row) -> DaemonRow:
    return DaemonRow(row["daemon_id"], row["host"], row["boot_id"], row["pid"], row["beat_at"], row["retired_at"])


def event_from(row: sqlite3.Row) -> EventRow:
    return EventRow(row["at"], row["workload_id"], row["kind"], row["actor"], _reason(row["reason"]), row["detail"])


def command_exit_from(row: sqlite3.Row) -> CommandExit:
    return CommandExit(
        exit_code=row["exit_code"],
        signal=row["exit_signal"],
        ended_at=row["ended_at"],
        asked=row["asked"],
        reason=_reason(row["reason"]),
        detail=row["detail"],
        started_at=row["started_at"],
    )
