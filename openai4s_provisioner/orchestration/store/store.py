"""What the control plane remembers: workloads, attempts, workers, kernels, leases, and who did what.

Synchronous, and used from the one thread of `StoreThread`. A writer of facts never writes a wish and the other way
round; a change of phase goes through the table of `phases`; every method is one commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..errors import IllegalTransition, Refused, SessionEnded, StateError
from ..models import (
    Allocation,
    Desired,
    ExternalHandle,
    KernelExit,
    Kind,
    LeasePolicy,
    LinkState,
    Phase,
    Registration,
    Workload,
)
from ..phases import PhaseEvent, ending_event, next_phase
from ..reasons import Reason
from . import rows
from .entries import Ending, NewBatch, NewSession
from .rows import EventRow, LaunchRow, Situation
from .sqlite import Database

_MAX_DETAIL_CHARS = 8192


class Store:
    """The durable state of one person's sessions. Raises StateError when the file cannot be used."""

    def __init__(self, state_dir: Path) -> None:
        self.db = Database(state_dir)

    @property
    def path(self) -> Path:
        return self.db.path

    def close(self) -> None:
        self.db.close()

    # -- wishes ----------------------------------------------------------------------------------------------------

    def open_session(self, new: NewSession, daemon_id: str, now: float) -> None:
        """Workload, first attempt with its token, binding, launch and lease, in one commit.

        Raises Refused(QUOTA_EXCEEDED): counted inside, so that two processes cannot both take the last place.
        """
        with self.db.transaction():
            if self.active_sessions(new.owner) >= new.max_sessions:
                raise Refused.because(Reason.QUOTA_EXCEEDED)
            if self.workload_of_kernel(new.kernel_id) is not None:
                raise Refused(
                    Reason.INVALID_SPEC, "This kernel already holds a session. Restart it, or shut it down first."
                )
            self.open_workload(new, Kind.SESSION, daemon_id, now)
            self._bind(new.workload_id, new.kernel_id, new.launch_id, new.spec.notebook_path, new.leases, now)

    def bind_launch(
        self, workload_id: str, kernel_id: str, launch_id: str, notebook_path: str, leases: LeasePolicy, now: float
    ) -> Allocation:
        """A further start in the held allocation: of a kernel it holds (restart), or of one more.

        Raises SessionEnded when the session has ended or is being stopped (INV-4: nothing new is submitted for it).
        """
        with self.db.transaction():
            situation = self._situation(workload_id)
            workload = situation.workload
            if workload.phase.is_terminal or workload.desired is Desired.STOPPED:
                reason = workload.reason or Reason.USER_CANCELLED
                raise SessionEnded.because(reason, workload.reason_detail)
            held = {binding.kernel_id for binding in situation.bindings if binding.released_at is None}
            if kernel_id in held:
                self.db.write(
                    "insert_launch", workload_id=workload_id, kernel_id=kernel_id, launch_id=launch_id, now=now
                )
                self.db.write("rebind_launch", workload_id=workload_id, kernel_id=kernel_id, launch_id=launch_id)
            else:
                self._bind(workload_id, kernel_id, launch_id, notebook_path, leases, now)
            return situation.allocation

    def request_stop(self, workload_id: str, reason: Reason, detail: str, actor: str, now: float) -> bool:
        """Wish the session stopped. True for the first wish; a later one changes nothing and is still recorded."""
        with self.db.transaction():
            return self.wish_stopped(workload_id, reason, detail, actor, now)

    def release_kernel(self, kernel_id: str, reason: Reason, actor: str, now: float) -> str | None:
        """Give a kernel back. The allocation ends with its last kernel, in the same commit. Its workload, or None."""
        with self.db.transaction():
            released = self.db.rows("release_binding", kernel_id=kernel_id, now=now)
            if not released:
                return None
            workload_id: str = released[0]["workload_id"]
            self.note(workload_id, "kernel_released", actor, reason, kernel_id, now)
            (held,) = self._one("held_bindings", workload_id=workload_id)
            if held == 0:
                self.wish_stopped(workload_id, reason, "", actor, now)
            return workload_id

    # -- facts about an attempt ------------------------------------------------------------------------------------

    def begin_submit(self, allocation: Allocation, daemon_id: str, now: float) -> bool:
        """Before the call: from here on its fate is unknown, a crash included (INV-8). False: do not call.

        Compare-and-set on the wish, the driver, and the state of knowledge that the decision was made on.
        """
        with self.db.transaction():
            begun = self.db.write(
                "begin_submit",
                allocation_id=allocation.allocation_id,
                unknown_since=allocation.submit_unknown_since,
                daemon_id=daemon_id,
                now=now,
            )
            return begun == 1

    def submit_unknown(self, allocation_id: str, backend_detail: str, now: float, waiting: str = "") -> None:
        """The call came back without an answer: the settle window begins now."""
        said = {"waiting": waiting, "backend_detail": _bounded(backend_detail)}
        self.db.write("submit_unknown", allocation_id=allocation_id, now=now, **said)

    def handle_known(self, allocation_id: str, handle: ExternalHandle) -> None:
        with self.db.transaction():
            allocation = self._allocation(allocation_id)
            after = next_phase(allocation.phase, PhaseEvent.HANDLE_KNOWN)
            self.db.write(
                "set_handle", allocation_id=allocation_id, handle=handle.value, phase=after, before=allocation.phase
            )
            self._follow(allocation, after)

    def advance(self, allocation_id: str, event: PhaseEvent, now: float) -> Phase:
        """Apply GRANTED, READY or RELEASE. Raises IllegalTransition and changes nothing otherwise."""
        with self.db.transaction():
            allocation = self._allocation(allocation_id)
            after = next_phase(allocation.phase, event)
            if after.is_terminal or event is PhaseEvent.HANDLE_KNOWN:
                raise IllegalTransition(f"{event} needs more than a phase")
            self.db.write(
                "set_allocation_phase",
                allocation_id=allocation_id,
                phase=after,
                before=allocation.phase,
                granted_at=now if event is PhaseEvent.GRANTED else None,
            )
            self._follow(allocation, after)
            if event is PhaseEvent.RELEASE:
                self.note(allocation.workload_id, "releasing", "reconciler", None, "", now)
            return after

    def end(self, allocation_id: str, ending: Ending, now: float) -> None:
        """Terminal, final (INV-6): attempt and workload, bindings, resume keys, and what is to be cleared away."""
        with self.db.transaction():
            allocation = self._allocation(allocation_id)
            after = next_phase(allocation.phase, ending_event(ending.phase))
            workload_id = allocation.workload_id
            self.db.write(
                "end_allocation",
                allocation_id=allocation_id,
                phase=after,
                before=allocation.phase,
                backend_reason=ending.backend_reason,
                backend_detail=_bounded(ending.backend_detail),
                now=now,
            )
            self.db.write(
                "end_workload",
                workload_id=workload_id,
                epoch=allocation.epoch,
                phase=after,
                reason=ending.reason,
                detail=_bounded(ending.detail),
                now=now,
            )
            self.db.write("release_bindings", workload_id=workload_id, now=now)
            self.db.write("forget_resume_keys", allocation_id=allocation_id)
            self.db.write("insert_debris", allocation_id=allocation_id, now=now)
            self.note(workload_id, "ended", "reconciler", ending.reason, f"{after}: {ending.detail}", now)

    def note_gone(self, allocation_id: str, since: float | None) -> None:
        self.db.write("set_gone_since", allocation_id=allocation_id, gone_since=since)

    def drain_begun(self, allocation_id: str, now: float) -> None:
        self.db.write("set_drain_since", allocation_id=allocation_id, now=now)

    def cancel_asked(self, allocation_id: str, now: float) -> None:
        self.db.write("set_cancel_asked", allocation_id=allocation_id, now=now)

    def debris(self, daemon_id: str) -> list[Allocation]:
        """Ended attempts of ours that still leave something outside this file."""
        return [rows.allocation_from(row) for row in self.db.rows("debris", daemon_id=daemon_id)]

    def debris_cleared(self, allocation_id: str) -> None:
        self.db.write("delete_debris", allocation_id=allocation_id)

    # -- facts about workers and kernels ---------------------------------------------------------------------------

    def register_worker(self, who: Registration, nonce: str, resume_key: bytes, host: str, now: float) -> bool:
        """Check the live epoch, burn the credential and keep the resume key, in one commit. False: refuse."""
        with self.db.transaction():
            burned = self.db.rows(
                "register_worker",
                workload_id=who.workload_id,
                allocation_id=who.allocation_id,
                epoch=who.epoch,
                rank=who.rank,
                nonce=nonce,
                resume_key=resume_key,
                host=_bounded(host),
                now=now,
            )
            return len(burned) == 1

    def resume_key(self, allocation_id: str, rank: int) -> bytes | None:
        found = self.db.row("resume_key", allocation_id=allocation_id, rank=rank)
        return None if found is None else found["resume_key"]

    def is_expected(self, allocation_id: str, epoch: int) -> bool:
        return self.db.row("is_expected", allocation_id=allocation_id, epoch=epoch) is not None

    def worker_link(self, allocation_id: str, rank: int, link: LinkState, now: float) -> None:
        self.db.write("set_link", allocation_id=allocation_id, rank=rank, link=link, now=now)

    def worker_ended(self, allocation_id: str, rank: int, exit_code: int | None, reason: str, now: float) -> None:
        self.db.write(
            "end_worker",
            allocation_id=allocation_id,
            rank=rank,
            exit_code=exit_code,
            exit_reason=_bounded(reason),
            now=now,
        )

    def workspace(self, allocation_id: str, rank: int, ready: bool, detail: str) -> None:
        self.db.write(
            "set_workspace", allocation_id=allocation_id, rank=rank, ready=int(ready), detail=_bounded(detail)
        )

    def kernel_isolated(self, launch_id: str, isolated: bool) -> None:
        self.db.write("set_isolated", launch_id=launch_id, isolated=int(isolated))

    def kernel_started(self, launch_id: str, pid: int, now: float) -> None:
        self.db.write("set_kernel_started", launch_id=launch_id, pid=pid, now=now)

    def kernel_ready(self, launch_id: str, now: float) -> None:
        with self.db.transaction():
            self.db.write("set_kernel_ready", launch_id=launch_id, now=now)
            self.db.write("start_lease", launch_id=launch_id, now=now)

    def kernel_exited(self, ended: KernelExit) -> None:
        with self.db.transaction():
            self.db.write(
                "set_kernel_exited",
                launch_id=ended.launch_id,
                exit_code=ended.exit_code,
                exit_signal=ended.signal,
                tail=_bounded(ended.tail),
                now=ended.exited_at,
            )
            self.db.rows("note_activity", launch_id=ended.launch_id, activity="idle", began=False, now=ended.exited_at)

    def record(
        self, workload_id: str | None, kind: str, actor: str, reason: Reason | None, detail: str, now: float
    ) -> None:
        """INV-12: who did what, when and why."""
        with self.db.transaction():
            self.note(workload_id, kind, actor, reason, detail, now)

    # -- reading ---------------------------------------------------------------------------------------------------

    def situation(self, workload_id: str) -> Situation | None:
        with self.db.snapshot():
            if self.db.row("workload", workload_id=workload_id) is None:
                return None
            return self._situation(workload_id)

    def situations(self, daemon_id: str, only: Sequence[str] | None = None) -> list[Situation]:
        """Every unfinished workload that this process drives, or those of `only` among them."""
        with self.db.snapshot():
            driven = [row["workload_id"] for row in self.db.rows("driven", daemon_id=daemon_id)]
            return [self._situation(each) for each in driven if only is None or each in only]

    def driver_of(self, workload_id: str) -> str | None:
        found = self.db.row("driver_of", workload_id=workload_id)
        return None if found is None else found["owner_daemon"]

    def workload(self, workload_id: str) -> Workload | None:
        found = self.db.row("workload", workload_id=workload_id)
        return None if found is None else rows.workload_from(found)

    def allocation(self, allocation_id: str) -> Allocation | None:
        found = self.db.row("allocation", allocation_id=allocation_id)
        return None if found is None else rows.allocation_from(found)

    def launch(self, launch_id: str) -> LaunchRow | None:
        found = self.db.row("launch", launch_id=launch_id)
        return None if found is None else rows.launch_from(found)

    def workload_of_kernel(self, kernel_id: str) -> str | None:
        """The workload that holds this kernel now."""
        found = self.db.row("held_binding", kernel_id=kernel_id)
        return None if found is None else found["workload_id"]

    def active_sessions(self, owner: str) -> int:
        (count,) = self._one("active_sessions", owner=owner)
        return int(count)

    def events(self, workload_id: str | None) -> list[EventRow]:
        return [rows.event_from(row) for row in self.db.rows("events_of", workload_id=workload_id)]

    # -- shared by the above, inside their transaction -------------------------------------------------------------

    def _one(self, name: str, **values: object) -> sqlite3.Row:
        found = self.db.row(name, **values)
        if found is None:
            raise StateError(f"{self.path}: a row that must be there is missing. Restore the file from a copy.")
        return found

    def _allocation(self, allocation_id: str) -> Allocation:
        return rows.allocation_from(self._one("allocation", allocation_id=allocation_id))

    def _situation(self, workload_id: str) -> Situation:
        allocation = rows.allocation_from(self._one("newest_allocation", workload_id=workload_id))
        return Situation(
            workload=rows.workload_from(self._one("workload", workload_id=workload_id)),
            allocation=allocation,
            workers=tuple(map(rows.worker_from, self.db.rows("workers", allocation_id=allocation.allocation_id))),
            bindings=tuple(map(rows.binding_from, self.db.rows("bindings", workload_id=workload_id))),
            launches=tuple(map(rows.launch_from, self.db.rows("current_launches", workload_id=workload_id))),
        )

    def open_workload(self, new: NewSession | NewBatch, kind: Kind, daemon_id: str, now: float) -> None:
        self.db.write(
            "insert_workload",
            workload_id=new.workload_id,
            kind=kind,
            owner=new.owner,
            profile=new.profile,
            spec=rows.spec_text(new.spec),
            daemon_id=daemon_id,
            epoch=1,
            now=now,
        )
        self.insert_attempt(new.workload_id, new.allocation_id, 1, new.token, new.backend, new.nodes, now)
        self.note(new.workload_id, "opened", new.owner, None, new.profile, now)

    def insert_attempt(
        self, workload_id: str, allocation_id: str, epoch: int, token: str, backend: str, nodes: int, now: float
    ) -> None:
        names = {"workload_id": workload_id, "allocation_id": allocation_id, "token": token, "backend": backend}
        self.db.write("insert_allocation", epoch=epoch, nodes=nodes, now=now, **names)

    def _bind(
        self, workload_id: str, kernel_id: str, launch_id: str, notebook_path: str, leases: LeasePolicy, now: float
    ) -> None:
        names = {"workload_id": workload_id, "kernel_id": kernel_id, "now": now}
        self.db.write("insert_binding", notebook_path=notebook_path, launch_id=launch_id, **names)
        self.db.write("insert_launch", launch_id=launch_id, **names)
        self.db.write("insert_lease", **asdict(leases), **names)

    def _follow(self, allocation: Allocation, phase: Phase) -> None:
        """The workload repeats the phase of its newest attempt."""
        self.db.write("set_workload_phase", workload_id=allocation.workload_id, epoch=allocation.epoch, phase=phase)

    def wish_stopped(self, workload_id: str, reason: Reason, detail: str, actor: str, now: float) -> bool:
        values = {"workload_id": workload_id, "reason": reason, "detail": _bounded(detail), "actor": actor, "now": now}
        first = self.db.write("wish_stopped", **values) == 1
        kind = "stop_requested" if first else "stop_requested_again"
        self.note(workload_id, kind, actor, reason, detail, now)
        return first

    def note(
        self, workload_id: str | None, kind: str, actor: str, reason: Reason | None, detail: str, now: float
    ) -> None:
        self.db.write(
            "insert_event",
            workload_id=workload_id,
            kind=kind,
            actor=actor or "unknown",
            reason=reason,
            detail=_bounded(detail),
            now=now,
        )


def _bounded(text: str) -> str:
    return text if len(text) <= _MAX_DETAIL_CHARS else "..." + text[-_MAX_DETAIL_CHARS + 3 :]
