"""What to do next about one workload: a pure decision over rows, an observation and the time. It changes nothing.

Level-triggered: the same rows give the same plan, so a restart, a lost event and a doubled event are one easy case.
It never reads a clock, and it never takes "could not ask" for an answer: UNKNOWN moves no phase and ends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .config import Policy
from .models import Allocation, Binding, CommandExit, Desired, Kind, Phase, WorkerRow, Workload
from .notes import Note, notes_of, talks, way_of
from .ports import Observation, Observed
from .reasons import Reason
from .recovery import may_recover, pause_s


@dataclass(frozen=True)
class Submit:
    """Send the attempt with its durable token, for the first time or again."""


@dataclass(frozen=True)
class LookUp:
    """The fate of a submission is open: ask by token, then let `after_empty_lookup` decide."""


@dataclass(frozen=True)
class MarkGranted:
    """It runs."""


@dataclass(frozen=True)
class MarkActive:
    """The four conditions hold."""


@dataclass(frozen=True)
class BeginRelease:
    """The fence of the cancel barrier: from here on no worker registers."""


@dataclass(frozen=True)
class Retire:
    """The same fence, around an attempt that is to be followed by another one: the wish stays."""

    reason: Reason
    detail: str = ""


@dataclass(frozen=True)
class Recover:
    """This attempt has ended, and a new epoch takes its place. The old allocation is cancelled all the same."""

    ending: MarkTerminal


@dataclass(frozen=True)
class SendEnd:
    """Drain: tell the workers to stop their kernels, deliver what they hold, and end."""

    first: bool


@dataclass(frozen=True)
class Cancel:
    """Ask the backend to end the whole tree."""


@dataclass(frozen=True)
class RequestStop:
    """Our own wish, with the reason that a person will read."""

    reason: Reason
    detail: str = ""


@dataclass(frozen=True)
class MarkTerminal:
    """The end, final. `reason` is what a person reads; the backend's word is kept beside it."""

    phase: Phase
    reason: Reason | None
    detail: str = ""
    backend_reason: Reason | None = None
    backend_detail: str = ""
    is_explained: bool = False  # its cause is known: no log needs to be quoted


@dataclass(frozen=True)
class RecordExit:
    """How the command of a BATCH ended."""

    ended: CommandExit


Action = (
    Submit
    | LookUp
    | MarkGranted
    | MarkActive
    | BeginRelease
    | Retire
    | Recover
    | SendEnd
    | Cancel
    | RequestStop
    | Note
    | MarkTerminal
    | RecordExit
)

# A stop for one of these reasons is a failure of the session; any other stop is somebody's wish.
_FAILURES = frozenset(
    {
        Reason.BOOTSTRAP_FAILED,
        Reason.WORKER_REGISTRATION_TIMEOUT,
        Reason.WORKER_LOST,
        Reason.NODE_FAILED,
        Reason.ISOLATION_UNVERIFIED,
        Reason.WORKSPACE_UNREACHABLE,
        Reason.KERNEL_START_FAILED,
        Reason.OUT_OF_MEMORY,
        Reason.BACKEND_SUBMISSION_UNKNOWN,
    }
)
PHASE_OF_WORD = {
    Observed.COMPLETED: Phase.COMPLETED,
    Observed.FAILED: Phase.FAILED,
    Observed.CANCELLED: Phase.CANCELLED,
}
# The worker's exit codes that say more than "it failed"; a test holds them to the worker's own table.
WORKER_EXIT_NEVER_REGISTERED = 69
WORKER_EXIT_SERVER_GONE = 75
_CLOCK_SLACK_S = 0.001
_MOST_NAMED = 8
_COULD_NOT_ASK = Observation(Observed.UNKNOWN)


def plan(
    workload: Workload,
    allocation: Allocation,
    observation: Observation | None,
    workers: Sequence[WorkerRow],
    bindings: Sequence[Binding],
    now: float,
    policy: Policy,
    recoverable: bool = False,
) -> tuple[Action, ...]:
    """The next actions, in order. `observation` None means that nobody asked, or that nobody answered.

    `recoverable`: somebody uses the session, and this process can start it again should its allocation be lost.
    """
    if workload.phase.is_terminal or allocation.phase.is_terminal:
        return ()
    if allocation.handle is None:
        return _without_handle(workload, allocation, now, policy)
    seen = observation or _COULD_NOT_ASK
    recoverable = recoverable and workload.desired is Desired.RUNNING
    ending = _ending(workload, allocation, seen, workers, now, policy)
    if ending is not None:
        return (Recover(ending) if recoverable and may_recover(ending.reason, workload.epoch) else ending,)
    notes = notes_of(allocation, seen, workers, now)
    if workload.kind is Kind.SESSION and seen.state is not Observed.UNKNOWN:
        notes = (*notes, *way_of(allocation, workers, now))
    if workload.desired is Desired.STOPPED or _is_retired(allocation):
        return (*notes, *_barrier(allocation, seen, workers, now, policy))
    steps = _progress(allocation, seen, workers, bindings, now, policy)
    if recoverable:
        steps = tuple(_retired(step, workload.epoch) for step in steps)
    return (*notes, *steps)


def _is_retired(allocation: Allocation) -> bool:
    """Its end is on its way, for a reason of its own, while the session is still wanted."""
    return allocation.phase is Phase.RELEASING and allocation.reason is not None


def _retired(step: Action, epoch: int) -> Action:
    """Instead of stopping the whole session for a loss: end this attempt only."""
    if isinstance(step, RequestStop) and may_recover(step.reason, epoch):
        return Retire(step.reason, step.detail)
    return step


def after_empty_lookup(
    workload: Workload, allocation: Allocation, asked_at: float, policy: Policy
) -> tuple[Action, ...]:
    """A look-up that began at `asked_at` answered "no such allocation". Before the settle window that says nothing."""
    since = allocation.submit_unknown_since
    if allocation.handle is not None or since is None or asked_at - since < policy.settle_window_s:
        return ()
    if workload.desired is Desired.STOPPED:
        return (_never_submitted(workload),)
    if allocation.submit_attempts >= policy.max_submits:
        detail = f"It was sent {allocation.submit_attempts} times and never arrived."
        return (MarkTerminal(Phase.FAILED, Reason.BACKEND_SUBMISSION_UNKNOWN, detail),)
    return (Submit(),)


def _without_handle(workload: Workload, allocation: Allocation, now: float, policy: Policy) -> tuple[Action, ...]:
    if allocation.submit_unknown_since is not None:
        return (LookUp(),)
    if workload.desired is Desired.STOPPED:
        return (_never_submitted(workload),)
    if now - allocation.created_at < pause_s(allocation.epoch, policy.recovery_pause_s) - _CLOCK_SLACK_S:
        return ()
    return (Submit(),)


def _never_submitted(workload: Workload) -> MarkTerminal:
    return MarkTerminal(_stopped_phase(workload), workload.reason, workload.reason_detail)


def _stopped_phase(workload: Workload) -> Phase:
    return Phase.FAILED if workload.reason in _FAILURES else Phase.CANCELLED


# -- the end -------------------------------------------------------------------------------------------------------


def _ending(
    workload: Workload,
    allocation: Allocation,
    seen: Observation,
    workers: Sequence[WorkerRow],
    now: float,
    policy: Policy,
) -> MarkTerminal | None:
    if seen.state in PHASE_OF_WORD:  # an explicit word is final at once
        return _by_word(workload, allocation, seen, workers)
    if seen.state is not Observed.GONE or talks(workers):
        return None
    if _said_goodbye(allocation, workers):  # a witness reported the exit: no need to wait
        return _by_witness(workload, allocation, seen, workers)
    if allocation.gone_since is None or now - allocation.gone_since < policy.gone_debounce_s:
        return None
    if workload.desired is Desired.STOPPED:
        return _ours(workload, _stopped_phase(workload), None, seen)
    reason = allocation.reason or (Reason.WORKER_LOST if workers else Reason.ADMIN_CANCELLED)
    phase = Phase.FAILED if allocation.phase is Phase.RELEASING else Phase.LOST  # we asked for its end, and it came
    return MarkTerminal(phase, reason, "No trace of the allocation is left.", None, seen.backend_detail)


def _by_word(
    workload: Workload, allocation: Allocation, seen: Observation, workers: Sequence[WorkerRow]
) -> MarkTerminal:
    return _ended_as(PHASE_OF_WORD[seen.state], seen.reason, workload, allocation, seen, workers)


def _by_witness(
    workload: Workload, allocation: Allocation, seen: Observation, workers: Sequence[WorkerRow]
) -> MarkTerminal:
    clean = all(worker.exit_code == 0 for worker in workers)
    return _ended_as(Phase.COMPLETED if clean else Phase.FAILED, None, workload, allocation, seen, workers)


def _ended_as(
    phase: Phase,
    theirs: Reason | None,
    workload: Workload,
    allocation: Allocation,
    seen: Observation,
    workers: Sequence[WorkerRow],
) -> MarkTerminal:
    if workload.desired is Desired.STOPPED:
        graceful = phase is Phase.COMPLETED and workload.reason not in _FAILURES
        return _ours(workload, Phase.COMPLETED if graceful else _stopped_phase(workload), theirs, seen)
    if _is_retired(allocation):
        return MarkTerminal(Phase.FAILED, allocation.reason, _exit_words(workers), theirs, seen.backend_detail)
    told = seen.explanation or _exit_words(workers)
    reason = theirs or _likely_reason(phase, seen, workers)
    if reason is Reason.WORKER_LOST and not workers:  # none was ever there to be lost
        reason = Reason.BOOTSTRAP_FAILED
    if phase is Phase.COMPLETED:  # a worker that ends well without our wish was told to by somebody else
        phase = Phase.FAILED if reason in _FAILURES else Phase.CANCELLED
    return MarkTerminal(phase, reason, told, theirs, seen.backend_detail, is_explained=bool(seen.explanation))


def _ours(workload: Workload, phase: Phase, theirs: Reason | None, seen: Observation) -> MarkTerminal:
    """We stopped it: our reason survives, and what the backend said is kept beside it."""
    return MarkTerminal(phase, workload.reason, workload.reason_detail, theirs, seen.backend_detail)


def _likely_reason(phase: Phase, seen: Observation, workers: Sequence[WorkerRow]) -> Reason:
    """It ended unasked and the backend gave no reason: what the exit codes of our own workers say."""
    if phase is Phase.CANCELLED:
        return Reason.ADMIN_CANCELLED
    codes = {seen.exit_code, *(worker.exit_code for worker in workers)}
    if WORKER_EXIT_SERVER_GONE in codes:
        return Reason.SERVER_GONE
    if WORKER_EXIT_NEVER_REGISTERED in codes:
        return Reason.WORKER_REGISTRATION_TIMEOUT
    if not workers:
        return Reason.BOOTSTRAP_FAILED
    return Reason.ADMIN_CANCELLED if phase is Phase.COMPLETED else Reason.WORKER_LOST


def _exit_words(workers: Sequence[WorkerRow]) -> str:
    """Who ended badly; and of several who went without a word, unless all of them did."""
    told = [f"worker {w.rank} on {w.host} ended with code {w.exit_code}" for w in workers if w.exit_code]
    silent = [w for w in workers if w.ended_at is None and not w.connected]
    if len(silent) < len(workers):
        told += [f"worker {w.rank} on {w.host} fell silent" for w in silent]
    return "; ".join(told)


# -- while it lives ------------------------------------------------------------------------------------------------


def _said_goodbye(allocation: Allocation, workers: Sequence[WorkerRow]) -> bool:
    return len(workers) == allocation.nodes and all(worker.ended_at is not None for worker in workers)


def _progress(
    allocation: Allocation,
    seen: Observation,
    workers: Sequence[WorkerRow],
    bindings: Sequence[Binding],
    now: float,
    policy: Policy,
) -> tuple[Action, ...]:
    runs = seen.state in (Observed.RUNNING, Observed.PAUSED) or talks(workers)
    if allocation.phase is Phase.PENDING:
        return (MarkGranted(),) if runs else ()
    if seen.state is Observed.UNKNOWN and not talks(workers):
        return ()
    if allocation.phase is Phase.GRANTED and _conditions_hold(allocation, workers, bindings):
        return (MarkActive(),)
    if _is_paused(allocation, seen):
        return ()
    if allocation.phase is Phase.GRANTED and _registration_is_late(allocation, workers, now, policy):
        return (RequestStop(Reason.WORKER_REGISTRATION_TIMEOUT, _who_is_missing(allocation, workers)),)
    return _lost_workers(allocation, workers, now, policy)


def _is_paused(allocation: Allocation, seen: Observation) -> bool:
    """Nobody in it can say a word. Of one that goes on it is first written down since when: that is when they can."""
    return seen.state is Observed.PAUSED or allocation.paused_since is not None


def _conditions_hold(allocation: Allocation, workers: Sequence[WorkerRow], bindings: Sequence[Binding]) -> bool:
    ranks_ready = sum(1 for worker in workers if worker.workspace_ready and worker.ended_at is None)
    kernel = any(each.kernel_ready_at is not None and each.released_at is None for each in bindings)
    return ranks_ready >= allocation.nodes and kernel


def _registration_is_late(allocation: Allocation, workers: Sequence[WorkerRow], now: float, policy: Policy) -> bool:
    if len(workers) >= allocation.nodes or allocation.granted_at is None:
        return False
    since = max(allocation.granted_at, allocation.resumed_at or 0.0)
    return now - since >= policy.registration_timeout_s


def _who_is_missing(allocation: Allocation, workers: Sequence[WorkerRow]) -> str:
    told = f"{len(workers)} of {allocation.nodes} workers connected"
    missing = sorted(set(range(allocation.nodes)) - {worker.rank for worker in workers})
    if allocation.nodes == 1:
        return f"{told}."
    named = ", ".join(map(str, missing[:_MOST_NAMED]))
    return f"{told}; missing: {named}" + (" and others." if len(missing) > _MOST_NAMED else ".")


def _lost_workers(
    allocation: Allocation, workers: Sequence[WorkerRow], now: float, policy: Policy
) -> tuple[Action, ...]:
    """A session is replaced whole: it is never left running with a part of its ranks."""
    for worker in workers:
        if worker.ended_at is not None and talks(workers) and now - worker.ended_at >= policy.rank_settle_s:
            how = f"ended with code {worker.exit_code}" if worker.exit_code else f"ended ({worker.exit_reason})"
            return (RequestStop(Reason.WORKER_LOST, f"Worker {worker.rank} on {worker.host} {how}."),)
        silent_s = now - max(worker.link_since, allocation.resumed_at or 0.0)
        if not worker.connected and worker.ended_at is None and silent_s >= policy.worker_lost_s:
            return (RequestStop(Reason.WORKER_LOST, f"Worker {worker.rank} on {worker.host} fell silent."),)
    return ()


def _barrier(
    allocation: Allocation, seen: Observation, workers: Sequence[WorkerRow], now: float, policy: Policy
) -> tuple[Action, ...]:
    """Fence, drain, release; the end is observed, never assumed. Re-entrant: every step is read from the rows."""
    steps: list[Action] = [] if allocation.phase is Phase.RELEASING else [BeginRelease()]
    if workers and allocation.drain_since is None:
        return (*steps, SendEnd(first=True))
    # Workers that said goodbye end by themselves: a cancel now would turn a good end into a cancelled one.
    can_hear = workers and not _is_paused(allocation, seen)
    draining = can_hear and 0 <= now - (allocation.drain_since or now) < policy.drain_s
    if draining and allocation.cancel_asked_at is None:
        return (*steps, SendEnd(first=False))  # a link that came back in between has not heard it yet
    asked = allocation.cancel_asked_at
    if asked is None or not 0 <= now - asked < policy.cancel_again_s:
        steps.append(Cancel())
    return tuple(steps)
