"""Which process drives which workload, as rows. Functions for the store's thread; `daemons` judges who is alive."""

from __future__ import annotations

from ..models import Kind
from ..reasons import Reason
from . import rows
from .rows import DaemonRow
from .store import Store


def register(store: Store, daemon_id: str, host: str, boot_id: str, pid: int, now: float) -> None:
    store.db.write("insert_daemon", daemon_id=daemon_id, host=host, boot_id=boot_id, pid=pid, now=now)


def beat(store: Store, daemon_id: str, now: float) -> None:
    store.db.write("beat", daemon_id=daemon_id, now=now)


def retire(store: Store, daemon_id: str, now: float) -> None:
    store.db.write("retire_daemon", daemon_id=daemon_id, now=now)


def unretired(store: Store) -> list[DaemonRow]:
    """The processes that have not said goodbye, the dead among them."""
    return [rows.daemon_from(row) for row in store.db.rows("unretired_daemons")]


def driven(store: Store, daemon_id: str) -> int:
    """How many unfinished workloads it drives."""
    return len(store.db.rows("driven", daemon_id=daemon_id))


def other_drivers(store: Store, daemon_id: str) -> list[DaemonRow]:
    """The other processes that have something left to drive or to clear away."""
    return [rows.daemon_from(row) for row in store.db.rows("other_drivers", daemon_id=daemon_id)]


def adopt(store: Store, dead: DaemonRow, daemon_id: str, now: float, kind: Kind | None = None) -> list[str]:
    """Take over what a dead process drove: compare-and-set on its owner and on the beat that was judged.

    `kind`: only what is of that kind.

    A submission whose fate it left open gets its settle window anew: the call may still be on its way. Sessions are
    wished stopped in the same commit, since their kernels' secrets died with the process: nobody would do it later.
    """
    with store.db.transaction():
        taken = store.db.rows("adopt", daemon_id=daemon_id, dead=dead.daemon_id, beat_at=dead.beat_at, kind=kind)
        store.db.write("adopt_debris", daemon_id=daemon_id, dead=dead.daemon_id)
        for (workload_id,) in taken:
            store.db.write("restamp_unknown", workload_id=workload_id, now=now)
            store.note(workload_id, "adopted", daemon_id, None, f"from {dead.daemon_id}", now)
            workload = store.workload(workload_id)
            if workload is not None and workload.kind is Kind.SESSION:  # a BATCH needs nobody, and goes on
                store.wish_stopped(workload_id, Reason.SERVER_GONE, "", f"daemon {daemon_id}", now)
        return [workload_id for (workload_id,) in taken]
