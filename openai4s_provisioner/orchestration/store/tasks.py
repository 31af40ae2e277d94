"""Tasks as rows: what is wished, what was handed to a worker, and how it ended. Functions for the store's thread."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass

from ..errors import Refused
from ..models import Desired, Phase, Task
from ..reasons import Reason
from . import rows
from .rows import DaemonRow
from .store import Store

MOST_OPEN = 32  # in one allocation
_MAX_DETAIL_CHARS = 2048

SHORTEST_ID = 4  # characters of a workload's id that name it


@dataclass(frozen=True)
class HeldKernel:
    """A kernel that holds a session now."""

    kernel_id: str
    workload_id: str
    notebook_path: str


@dataclass(frozen=True)
class NewTask:
    """Everything that one transaction writes when a task is asked for."""

    task_id: str
    workload_id: str
    actor: str
    argv: tuple[str, ...]
    cwd: str
    every_rank: bool = False


def open_task(store: Store, new: NewTask, now: float) -> Task:
    """Write a task down for the allocation that the session holds. Raises Refused; never asks for an allocation."""
    with store.db.transaction():
        workload = rows.workload_from(store.db.rows("workload", workload_id=new.workload_id)[0])
        allocation = rows.allocation_from(store.db.rows("newest_allocation", workload_id=new.workload_id)[0])
        if workload.desired is Desired.STOPPED or allocation.phase not in (Phase.GRANTED, Phase.ACTIVE):
            raise Refused(
                Reason.INVALID_SPEC,
                f"The session holds no allocation that a task could run in (it is {allocation.phase}). "
                "Nothing is submitted for a task: start the kernel, and try again when it is ready.",
            )
        (open_now,) = store.db.rows("open_tasks_in", allocation_id=allocation.allocation_id)[0]
        if open_now >= MOST_OPEN:
            raise Refused(
                Reason.QUOTA_EXCEEDED,
                f"{open_now} tasks run in this session, which is as many as are allowed at once. Wait for one.",
            )
        store.db.write(
            "insert_task",
            task_id=new.task_id,
            workload_id=new.workload_id,
            allocation_id=allocation.allocation_id,
            actor=new.actor,
            argv=json.dumps(new.argv),
            cwd=new.cwd,
            every_rank=int(new.every_rank),
            now=now,
        )
        store.note(new.workload_id, "task_opened", new.actor, None, new.task_id, now)
        return _task_from(store.db.rows("task", task_id=new.task_id)[0])


def task(store: Store, task_id: str) -> Task | None:
    found = store.db.row("task", task_id=task_id)
    return None if found is None else _task_from(found)


def open_tasks(store: Store, daemon_id: str | None = None) -> list[Task]:
    """Tasks that have not ended, in all sessions or in those that this process drives."""
    return [_task_from(row) for row in store.db.rows("open_tasks", daemon_id=daemon_id)]


def of_workload(store: Store, workload_id: str) -> list[Task]:
    """The newest hundred, the newest first."""
    return [_task_from(row) for row in store.db.rows("tasks_of", workload_id=workload_id)]


def named(store: Store, beginning: str) -> list[Task]:
    return [_task_from(row) for row in store.db.rows("tasks_named", beginning=beginning)]


def cancel(store: Store, task_id: str, actor: str, now: float) -> None:
    """Wish it ended. Idempotent; nothing for one that has ended."""
    store.db.write("cancel_task", task_id=task_id, actor=actor, now=now)


def cancel_all(store: Store, allocation_id: str, actor: str, now: float) -> int:
    """Wish every task of an allocation ended; how many have not ended yet."""
    with store.db.transaction():
        store.db.write("cancel_tasks_in", allocation_id=allocation_id, actor=actor, now=now)
        return int(store.db.rows("open_tasks_in", allocation_id=allocation_id)[0][0])


def sent(store: Store, task_id: str, now: float) -> None:
    store.db.write("set_task_sent", task_id=task_id, now=now)


def started(store: Store, task_id: str, now: float) -> None:
    """It runs; that somebody had it started is activity of the session."""
    with store.db.transaction():
        store.db.write("set_task_started", task_id=task_id, now=now)
        store.db.write("renew_by_task", task_id=task_id, only_if_busy=False, now=now)


def ended(store: Store, task_id: str, exit_code: int | None, signal: int | None, detail: str, now: float) -> None:
    """The first end stays. Where what runs counts as activity, the idle clock begins here."""
    with store.db.transaction():
        ended_now = store.db.write(
            "end_task",
            task_id=task_id,
            exit_code=exit_code,
            exit_signal=signal,
            detail=detail[-_MAX_DETAIL_CHARS:],
            now=now,
        )
        if ended_now == 1:
            store.db.write("renew_by_task", task_id=task_id, only_if_busy=True, now=now)


def held_kernels(store: Store) -> list[HeldKernel]:
    return [HeldKernel(*row) for row in store.db.rows("task_kernels")]


def kernels_named(store: Store, name: str) -> list[HeldKernel]:
    """Those that go by its id or its session's, or the beginning of one, or by its notebook or the end of that."""
    held = held_kernels(store) if name else []
    found = [one for one in held if one.kernel_id.startswith(name) or one.notebook_path == name]
    found = found or [one for one in held if len(name) >= SHORTEST_ID and one.workload_id.startswith(name)]
    return found or [one for one in held if one.notebook_path.endswith(f"/{name}")]


def kernel_named(store: Store, name: str) -> HeldKernel:
    """The one that is meant. Raises Refused."""
    held, found = held_kernels(store), kernels_named(store, name)
    if len(found) == 1:
        return found[0]
    if found:
        raise Refused(Reason.INVALID_SPEC, f"{len(found)} running kernels go by {name!r}. Give more of the id.")
    known = ", ".join(f"{one.kernel_id[:8]} ({one.notebook_path or 'no notebook'})" for one in held) or "none"
    raise Refused(
        Reason.INVALID_SPEC, f"No session holds a kernel {name!r}, and none is submitted for it. Running: {known}."
    )


def driver(store: Store, workload_id: str) -> DaemonRow | None:
    """The process that drives a session, alive or not."""
    found = store.db.row("driver", workload_id=workload_id)
    return None if found is None else rows.daemon_from(found)


def _task_from(row: sqlite3.Row) -> Task:
    return Task(
        task_id=row["task_id"],
        workload_id=row["workload_id"],
        allocation_id=row["allocation_id"],
        actor=row["actor"],
        argv=tuple(json.loads(row["argv"])),
        cwd=row["cwd"],
        created_at=row["created_at"],
        cancel_asked_at=row["cancel_asked_at"],
        sent_at=row["sent_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        exit_code=row["exit_code"],
        signal=row["exit_signal"],
        detail=row["detail"],
        every_rank=bool(row["every_rank"]),
    )
