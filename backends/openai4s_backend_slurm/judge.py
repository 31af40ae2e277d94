"""What is said of each job, from its row in the queue, and from further witnesses where that row is gone or unclear.

Runs in a thread, because witnesses are asked. It ends no job on a guess: two kinds only are given up, those that can
never start, and those that were put back into the queue and would start without a kernel. Both are cancelled first.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence

from openai4s_provisioner.orchestration.errors import CouldNotAsk
from openai4s_provisioner.orchestration.models import ExternalHandle
from openai4s_provisioner.orchestration.ports import Observation, Observed
from openai4s_provisioner.orchestration.reasons import Reason

from . import parse, states
from .lookup import Lookup
from .parse import AccountingRow, JobName, QueueRow
from .places import Places
from .script import job_name

_log = logging.getLogger(__name__)
_NEVER_AFTER_S = 20.0  # a reason that can never clear is believed when it has stood for so long
_ACCOUNTING_LAGS_S = 10.0
_OLD_S = 86400.0
_REQUEUED = (
    "It was put back into the queue, where the kernel's memory could not follow, so it was ended; ask your "
    "administrator if you did not do that yourself."
)
Wanted = Mapping[ExternalHandle, tuple[JobName, str]]
Cancel = Callable[[JobName, str], None]


class Judge:
    def __init__(
        self,
        lookup: Lookup,
        places: Places,
        cancel: Cancel,
        position: Callable[[QueueRow, str], int | None] = lambda row, cluster: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock`: seconds since the epoch, as the scheduler's own."""
        self._lookup = lookup
        self._position = position
        self._places = places
        self._cancel = cancel
        self._clock = clock
        self._never_since: dict[str, float] = {}  # by token
        self._ended_since: dict[str, float] = {}  # by token

    def judge(self, wanted: Wanted, rows: Sequence[QueueRow], cluster: str) -> dict[ExternalHandle, Observation]:
        """One observation for each. Never raises for one of them."""
        self._forget_old()
        known = {row.number: row for row in rows}
        in_queue = {
            handle: row
            for handle, (name, token) in wanted.items()
            if (row := known.get(name.number)) is not None and row.name == job_name(token)
        }
        unclear = [handle for handle in wanted if handle not in in_queue or _needs_accounting(in_queue[handle])]
        numbers = {wanted[handle][0].number: wanted[handle][1] for handle in unclear}
        accounting = self._lookup.accounting(numbers, cluster) if numbers else {}
        answers = {}
        for handle, (name, token) in wanted.items():
            past = (accounting or {}).get(name.number)
            if handle in in_queue:
                answers[handle] = self._of_row(name, token, in_queue[handle], past, accounting is not None)
            else:
                answers[handle] = self._of_the_past(name, token, past)
        return answers

    def _forget_old(self) -> None:
        """What began long ago is decided, or nobody asks after it any more."""
        for began in (self._never_since, self._ended_since):
            for token, at in list(began.items()):
                if abs(self._clock() - at) > _OLD_S:
                    began.pop(token, None)  # another thread may be at it

    def _of_row(
        self, name: JobName, token: str, row: QueueRow, past: AccountingRow | None, has_accounting: bool
    ) -> Observation:
        end = states.end_state(row.state)
        if end is not None:
            return self._over(name, token, row, end, past, has_accounting)
        live = states.live_state(row.state)
        detail = _detail(row)
        if live is None:
            return Observation(Observed.UNKNOWN, backend_detail=f"an unknown state: {detail}")
        if live is Observed.PENDING:
            return self._pending(name, token, row)
        self._never_since.pop(token, None)
        return Observation(live, backend_detail=detail, hosts=parse.hosts(row.nodes), ends_at=row.ends_at)

    # Waiting.

    def _pending(self, name: JobName, token: str, row: QueueRow) -> Observation:
        detail = _detail(row)
        if self._places.started_as(token) == name.number and self._still_waits(name, token):  # it ran before
            self._give_up(name, token, Reason.PREEMPTED, _REQUEUED)
            return Observation(Observed.ENDING, backend_detail=detail)
        why = states.waiting(row.reason)
        if states.is_node_limit(row.reason) and self._asks_too_many(row, name.cluster):
            why = states.TOO_MANY_NODES
        if not why.never_clears:
            self._never_since.pop(token, None)
        elif self._clock() - self._never_since.setdefault(token, self._clock()) >= _NEVER_AFTER_S:
            self._give_up(name, token, Reason.UNSCHEDULABLE, f"It could never start: {why.words}. {why.remedy}.")
        is_guess = row.starts_at is None or row.starts_at <= self._clock() or why.never_clears
        starts_at = None if is_guess else row.starts_at
        position = self._position(row, name.cluster)
        return Observation(
            Observed.PENDING, waiting=why.words, backend_detail=detail, estimated_start=starts_at, position=position
        )

    def _asks_too_many(self, row: QueueRow, cluster: str) -> bool:
        """Whether it could not start there even if every machine were in service."""
        if row.asks_nodes is None or not row.partition or "," in row.partition:
            return False
        most = self._lookup.nodes_granted(row.partition, cluster)
        return most is not None and row.asks_nodes > most

    def _still_waits(self, name: JobName, token: str) -> bool:
        """Asked again: it may have begun between the queue's answer, which can be long on its way, and our look."""
        try:
            now = self._lookup.state_of(token, name.number)
        except CouldNotAsk:
            return False  # the next look will tell
        return states.live_state(now) is Observed.PENDING

    def _give_up(self, name: JobName, token: str, reason: Reason, words: str) -> None:
        """Written down first: how it ends is then known, whoever asks."""
        try:
            self._places.give_up(token, f"{reason}\n{words}")
            self._cancel(name, token)
        except CouldNotAsk as error:
            _log.warning("a job could not be given up, which is tried again: %s", error)

    # The end.

    def _over(
        self,
        name: JobName,
        token: str,
        row: QueueRow,
        end: tuple[Observed, Reason | None],
        past: AccountingRow | None,
        has_accounting: bool,
    ) -> Observation:
        end = self._witnessed(name, token, end)
        cancelled_by = states.canceller(past.state) if past is not None else None
        if end[0] is Observed.CANCELLED and cancelled_by is None and has_accounting and self._may_still_show(token):
            return Observation(Observed.ENDING, backend_detail=_detail(row), hosts=parse.hosts(row.nodes))
        exit_ = self._exit(name, token, past) if row.state.startswith("FAILED") else None
        return self._ended(token, end, exit_, cancelled_by, _detail(row), row.nodes)

    def _witnessed(
        self, name: JobName, token: str, end: tuple[Observed, Reason | None]
    ) -> tuple[Observed, Reason | None]:
        """ "Out of memory" is said as well of a job that went on after one of its programs was ended for want of it:
        when its own record says that all ended well, a kernel was lost, and not the job."""
        if end[1] is Reason.OUT_OF_MEMORY:
            recorded = self._places.exit_of(token, name.number)
            if recorded is not None and recorded.code == 0:
                return Observed.COMPLETED, None
        return end

    def _may_still_show(self, token: str) -> bool:
        """Accounting learns a little later who cancelled a job."""
        return self._clock() - self._ended_since.setdefault(token, self._clock()) < _ACCOUNTING_LAGS_S

    def _exit(self, name: JobName, token: str, past: AccountingRow | None) -> states.Exit | None:
        recorded = self._places.exit_of(token, name.number)
        if recorded is not None and recorded.code:
            return recorded
        if past is not None and past.exit is not None and states.base_state(past.state) == "FAILED":
            return past.exit
        return self._lookup.exit_code(name)

    def _of_the_past(self, name: JobName, token: str, past: AccountingRow | None) -> Observation:
        """It left the queue: accounting, then what it wrote down itself, says how."""
        end = states.end_state(past.state) if past is not None else None
        exit_ = self._places.exit_of(token, name.number)
        if past is not None and end is not None:
            end = self._witnessed(name, token, end)
            if end == (Observed.FAILED, None) and (exit_ is None or not exit_.code):
                exit_ = past.exit
            return self._ended(
                token, end, exit_, states.canceller(past.state), f"{past.state} (accounting)", past.nodes
            )
        if self._verdict(token) is not None:
            return self._ended(token, (Observed.CANCELLED, None), None, None, "it left the queue", "")
        if exit_ is None:
            return Observation(Observed.GONE, backend_detail="the queue does not have it any more")
        clean = exit_.code == 0
        end = (Observed.COMPLETED if clean else Observed.FAILED, None)
        detail = f"the job's own record: exit code {exit_.code}"
        return self._ended(token, end, exit_, None, detail, "")

    def _ended(
        self,
        token: str,
        end: tuple[Observed, Reason | None],
        exit_: states.Exit | None,
        cancelled_by: int | None,
        detail: str,
        nodes: str,
    ) -> Observation:
        state, reason = end
        hosts = parse.hosts(nodes)
        self._never_since.pop(token, None)
        verdict = self._verdict(token)
        if verdict is not None and state is not Observed.COMPLETED:
            return Observation(Observed.FAILED, verdict[0], backend_detail=detail, hosts=hosts, explanation=verdict[1])
        if state is Observed.FAILED and reason is None:
            reason = exit_.reason if exit_ is not None else Reason.WORKER_LOST
            detail = detail if exit_ is None else f"{detail}; exit {exit_.code}:{exit_.signal}"
        if state is Observed.CANCELLED and cancelled_by is not None:
            reason = Reason.USER_CANCELLED if cancelled_by == os.getuid() else Reason.ADMIN_CANCELLED
            detail = f"{detail}; by uid {cancelled_by}"
        code = exit_.plain_code if exit_ is not None and state is Observed.FAILED else None
        return Observation(state, reason, backend_detail=detail, exit_code=code, hosts=hosts)

    def _verdict(self, token: str) -> tuple[Reason, str] | None:
        code, _, words = self._places.verdict(token).partition("\n")
        if code in list(Reason):
            return Reason(code), words
        return (Reason.PREEMPTED, _REQUEUED) if self._places.was_requeued(token) else None


def _needs_accounting(row: QueueRow) -> bool:
    return states.base_state(row.state) == "CANCELLED"


def _detail(row: QueueRow) -> str:
    reason = f" ({row.reason})" if row.reason not in ("", "None") else ""
    return f"job {row.number}: {row.state}{reason}" + (f" on {row.nodes}" if row.nodes else "")
