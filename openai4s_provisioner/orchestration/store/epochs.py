"""One attempt ends and another takes its place, as rows. Functions for the store's thread; `recovery` says when.

Ending the old attempt and opening the new epoch is one commit: a crash finds the one or the other, never neither and
never both. A wish to stop that came in between wins.
"""

from __future__ import annotations

from ..errors import IllegalTransition
from ..models import Phase
from ..phases import PhaseEvent, ending_event, next_phase
from ..reasons import Reason
from .entries import Ending, NewEpoch
from .store import Store

_ACTOR = "reconciler"


def retire(store: Store, allocation_id: str, reason: Reason, detail: str, now: float) -> None:
    """The fence around an attempt that is to be replaced: RELEASING, with why. The wish is not touched."""
    with store.db.transaction():
        before = store.allocation(allocation_id)
        if before is None:
            raise IllegalTransition("there is no such attempt")
        store.db.write(
            "retire_allocation",
            allocation_id=allocation_id,
            phase=next_phase(before.phase, PhaseEvent.RELEASE),
            before=before.phase,
            reason=reason,
        )
        store.db.write("set_workload_phase", workload_id=before.workload_id, epoch=before.epoch, phase=Phase.RELEASING)
        store.note(before.workload_id, "retiring", _ACTOR, reason, detail, now)


def open_epoch(store: Store, old_id: str, ending: Ending, new: NewEpoch, daemon_id: str, now: float) -> None:
    """End the old attempt and open the new one. Raises IllegalTransition, and changes nothing, when the workload is
    wished stopped, driven by another process, or no longer at the old attempt's epoch."""
    with store.db.transaction():
        old = store.allocation(old_id)
        if old is None:
            raise IllegalTransition("there is no such attempt")
        store.db.write(
            "end_allocation",
            allocation_id=old_id,
            phase=next_phase(old.phase, ending_event(ending.phase)),
            before=old.phase,
            backend_reason=ending.backend_reason or ending.reason,
            backend_detail=ending.backend_detail,
            now=now,
        )
        opened = store.db.write(
            "next_epoch", workload_id=old.workload_id, epoch=old.epoch, daemon_id=daemon_id, next=old.epoch + 1
        )
        if opened != 1:
            raise IllegalTransition("the workload moved on before it could be recovered")
        attempt = (old.workload_id, new.allocation_id, old.epoch + 1, new.token)
        store.insert_attempt(*attempt, old.backend, old.nodes, now)
        for kernel_id, launch_id in new.launches.items():
            names = {"workload_id": old.workload_id, "kernel_id": kernel_id, "launch_id": launch_id}
            store.db.write("insert_launch", now=now, **names)
            store.db.write("rebind_launch", **names)
        store.db.write("forget_resume_keys", allocation_id=old_id)
        store.db.write("insert_debris", allocation_id=old_id, now=now)
        store.note(old.workload_id, "recovering", _ACTOR, ending.reason, f"epoch {old.epoch + 1}: {ending.detail}", now)
