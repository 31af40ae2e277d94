"""What to do next about a BATCH: `plan`, with another witness of the end. Pure, like it.

A BATCH has no worker that talks. What it has is the record that its worker wrote when the command ended, so an end
is explained by that record, by the backend's word, or by both: the record says how the command ended, the backend
why it was made to.
"""

from __future__ import annotations

import math
from dataclasses import replace

from .config import Policy
from .models import Allocation, CommandExit, Desired, Phase, Workload
from .notes import NoteGone
from .plan import PHASE_OF_WORD, Action, MarkActive, MarkTerminal, RecordExit, plan
from .ports import Observation, Observed
from .reasons import Reason


def asks_for_record(observation: Observation | None) -> bool:
    """Whether the record of the end matters yet: a look into a shared folder, for every command and every turn."""
    return observation is not None and (observation.state in PHASE_OF_WORD or observation.state is Observed.GONE)


def plan_batch(
    workload: Workload,
    allocation: Allocation,
    observation: Observation | None,
    ended: CommandExit | None,
    now: float,
    policy: Policy,
) -> tuple[Action, ...]:
    """The next actions, in order. `ended`: the record, once it shows."""
    patient = replace(policy, registration_timeout_s=math.inf)  # nobody registers
    if allocation.handle is None or workload.phase.is_terminal or observation is None:
        return plan(workload, allocation, observation, (), (), now, patient)
    if observation.state in PHASE_OF_WORD or (observation.state is Observed.GONE and ended is not None):
        return _end(workload, allocation, observation, ended, now, policy)
    actions = plan(workload, allocation, observation, (), (), now, patient)
    if allocation.phase is Phase.GRANTED and workload.desired is Desired.RUNNING:
        runs = observation.state in (Observed.RUNNING, Observed.PAUSED)
        return (*actions, MarkActive()) if runs else actions
    return tuple(_as_lost(action) for action in actions)


def _as_lost(action: Action) -> Action:
    if isinstance(action, MarkTerminal) and action.phase is Phase.LOST:
        return replace(action, reason=Reason.WORKER_LOST)
    return action


def _end(
    workload: Workload,
    allocation: Allocation,
    seen: Observation,
    ended: CommandExit | None,
    now: float,
    policy: Policy,
) -> tuple[Action, ...]:
    """The worker ends well only after it wrote its record, so that one will show; network folders are slow."""
    if ended is None and seen.state is Observed.COMPLETED and seen.reason is None:
        if allocation.gone_since is None:
            return (NoteGone(now),)
        if now - allocation.gone_since < policy.workspace_settle_s:
            return ()
    phase, reason, detail = _verdict(workload, seen, ended)
    end = MarkTerminal(
        phase,
        reason,
        detail,
        seen.reason,
        seen.backend_detail,
        is_explained=ended is not None or bool(seen.explanation),
    )
    return (end,) if ended is None else (RecordExit(ended), end)


def _verdict(workload: Workload, seen: Observation, ended: CommandExit | None) -> tuple[Phase, Reason | None, str]:
    if ended is not None and ended.reason is not None:  # it was not run at all
        return Phase.FAILED, ended.reason, ended.detail
    if ended is not None and not ended.asked:  # it ended by itself, whatever was wished in the meantime
        if ended.exit_code == 0:
            return Phase.COMPLETED, None, ended.sentence
        return Phase.FAILED, seen.reason, ended.sentence
    told = "" if ended is None else ended.sentence
    if workload.desired is Desired.STOPPED:
        return Phase.CANCELLED, workload.reason, workload.reason_detail or told
    phase = PHASE_OF_WORD.get(seen.state, Phase.FAILED)
    if phase is Phase.COMPLETED and ended is None:
        return Phase.FAILED, Reason.WORKER_LOST, "How the command ended was not written down."
    if phase is Phase.CANCELLED or (ended is not None and seen.reason is None):
        return Phase.CANCELLED, seen.reason or Reason.ADMIN_CANCELLED, told
    return phase, seen.reason or Reason.WORKER_LOST, told or seen.explanation
