"""Sessions and commands as the REST interface shows them: the shapes of rest-api.yml, from values, at one moment.

Pure. Holds no secret, no path of one, and no word of a scheduler but a backend's raw text, which is passed on unread.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ..orchestration.choice import CHOOSABLE, most_of
from ..orchestration.commands import command_sentence
from ..orchestration.leases import Lease, deadline_of, ends_of
from ..orchestration.models import BatchSpec, Binding, Desired, Kind, Phase, ResourceProfile, SessionSpec
from ..orchestration.readiness import Condition, Readiness
from ..orchestration.reasons import KERNEL_OUT_OF_MEMORY, Reason
from ..orchestration.store.rows import Situation
from ..orchestration.usage import Usage
from ..orchestration.walltime import most_extension_s
from ..person_desk import View

Json = dict[str, Any]
Shorten = Callable[[str], str]  # a notebook's path, as Jupyter's own interfaces name it


def moment(at: float | None) -> str | None:
    """ISO 8601, in UTC."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def session_json(view: View, now: float, shorten: Shorten) -> Json:
    """The schema `Session`."""
    situation, spec = view.seen.now, view.seen.now.workload.spec
    assert isinstance(spec, SessionSpec)
    readiness = situation.readiness()
    lease = deadline_of(view.seen.leases)
    recoveries = situation.workload.epoch - 1
    content = _workload_json(view, now)
    content |= {
        "kernels": [_kernel_json(each, view, spec, shorten) for each in _shown_kernels(situation)],
        "conditions": [_condition_json(each, readiness) for each in Condition],
        "met": readiness.met,
        "missing": None if readiness.missing is None else str(readiness.missing),
        "lease_ends_at": moment(None if lease is None else lease.at),
        "memory_lost": _memory_lost(view),
        "recoveries": recoveries,
    }
    content["state"] = _state(situation, readiness)
    content["sentence"] = _sentence(view, content, situation.pause or readiness.sentence)
    return content


def batch_json(view: View, now: float, shorten: Shorten) -> Json:
    """The schema `Batch`."""
    situation, spec, ended = view.seen.now, view.seen.now.workload.spec, view.seen.ended
    assert isinstance(spec, BatchSpec)
    content = _workload_json(view, now)
    content |= {
        "command": shlex.join(spec.argv),
        "path": shorten(spec.notebook_path) if spec.notebook_path else None,
        "exit_code": None if ended is None else ended.exit_code,
        "signal": None if ended is None else ended.signal,
    }
    over, wished = situation.workload.phase.is_terminal, situation.workload.desired is Desired.STOPPED
    runs = situation.allocation.granted_at is not None
    content["state"] = "ended" if over else "ending" if wished else "ready" if runs else "starting"
    waits = situation.allocation.waiting or "it waits for its allocation"
    content["sentence"] = _end_sentence(content) if over or wished else "it runs" if runs else waits
    return content


def profile_json(profile: ResourceProfile, is_default: bool, kernelspecs: list[str]) -> Json:
    """The schema `Profile`: what a person may know of one."""
    resources = resources_json(profile) | {"walltime_s": profile.walltime_s}
    leases = profile.leases
    return {
        "name": profile.name,
        "display_name": profile.display_name or profile.name,
        "is_default": is_default,
        "resources": resources,
        "limits": resources | {name: most_of(name, resources[name], profile.limits) for name in CHOOSABLE},
        "leases": {
            "idle_ttl_s": leases.idle_ttl_s,
            "max_lifetime_s": leases.max_lifetime_s,
            "warn_s": leases.warn_s,
            "busy_counts": leases.busy_counts,
        },
        "kernelspecs": kernelspecs,
    }


def end_of(view: View, shorten: Shorten) -> str | None:
    """Why it is over, for whoever reads its log; None while it is not."""
    if not view.is_over:
        return None
    show = batch_json if view.kind is Kind.BATCH else session_json
    return str(show(view, 0.0, shorten)["sentence"])


def resources_json(profile: ResourceProfile) -> Json:
    return {"cpus": profile.cpus, "memory_mb": profile.memory_mb, "gpus": profile.gpus, "nodes": profile.nodes}


def _workload_json(view: View, now: float) -> Json:
    situation, profile = view.seen.now, view.profile
    workload, allocation = situation.workload, situation.allocation
    return {
        "workload_id": workload.workload_id,
        "kind": str(workload.kind),
        "profile": workload.profile,
        "profile_display_name": (profile.display_name if profile else "") or workload.profile,
        "phase": str(workload.phase),
        "desired": str(workload.desired),
        "epoch": workload.epoch,
        "waiting": _waiting_json(situation),
        "created_at": moment(workload.created_at),
        "granted_at": moment(allocation.granted_at),
        "ended_at": moment(_ended_at(situation)),
        "elapsed_s": round(max(0.0, (_ended_at(situation) or now) - workload.created_at), 1),
        "walltime_ends_at": moment(None if workload.phase.is_terminal else allocation.ends_at),
        "can_extend": _most_extension_s(view) > 0,
        "most_extension_s": _most_extension_s(view),
        "hosts": [worker.host for worker in situation.workers],
        "resources": None if profile is None else resources_json(profile),
        "usage": None if view.usage is None else _usage_json(view.usage),
        "reason": _reason_json(view),
        "detail": allocation.backend_detail,
    }


def _most_extension_s(view: View) -> int:
    workload, allocation = view.seen.now.workload, view.seen.now.allocation
    runs = allocation.phase in (Phase.GRANTED, Phase.ACTIVE) and workload.desired is Desired.RUNNING
    if not (runs and view.can_extend and view.profile is not None):
        return 0
    return most_extension_s(view.profile.max_walltime_s, allocation.granted_at, allocation.ends_at)


def _usage_json(usage: Usage) -> Json:
    return asdict(usage) | {"gpus": [asdict(card) for card in usage.gpus], "at": moment(usage.at)}


def _kernel_json(binding: Binding, view: View, spec: SessionSpec, shorten: Shorten) -> Json:
    lease = next((each for each in view.seen.leases if each.kernel_id == binding.kernel_id), None)
    return {
        "kernel_id": binding.kernel_id,
        "kernel_name": spec.kernel_name,
        "path": shorten(binding.notebook_path) if binding.notebook_path else None,
        "lease": None if lease is None else _lease_json(lease),
    }


def _lease_json(lease: Lease) -> Json:
    idle, absolute = ends_of(lease)
    return {
        "idle_ends_at": moment(None if idle is None else idle.at),
        "absolute_ends_at": moment(None if absolute is None else absolute.at),
        "warned": lease.warned_for is not None,
        "can_be_kept": idle is not None and (absolute is None or idle.at < absolute.at),
    }


def _condition_json(condition: Condition, readiness: Readiness) -> Json:
    have, want = readiness.counts(condition)
    return {
        "name": str(condition),
        "met": have >= want,
        "have": have,
        "want": want,
        "sentence": readiness.sentence_of(condition),
    }


def _waiting_json(situation: Situation) -> Json | None:
    allocation = situation.allocation
    if allocation.phase not in (Phase.SUBMITTING, Phase.PENDING):
        return None
    return {
        "sentence": allocation.waiting or "waiting for the allocation",
        "estimated_start": moment(allocation.estimated_start),
        "estimate_as_of": None if allocation.estimated_start is None else moment(allocation.estimate_as_of),
        "position": allocation.position,
    }


def _reason_json(view: View) -> Json | None:
    workload = view.seen.now.workload
    told = next((each.reason for each in view.changes.values() if each.reason is not None), None)
    reason = workload.reason or told
    if reason is None:
        return None
    is_command = workload.kind is Kind.BATCH
    is_of_kernel = reason is Reason.OUT_OF_MEMORY and workload.reason is None
    what_happened = KERNEL_OUT_OF_MEMORY if is_of_kernel else reason.what_happened
    return {
        "code": str(reason),
        "sentence": command_sentence(reason) if is_command else what_happened,
        "remedy": None if is_command else reason.remedy,
        "detail": workload.reason_detail,
        "actor": workload.actor,
    }


def _shown_kernels(situation: Situation) -> list[Binding]:
    """Those it holds; once it is over, those it held."""
    held = [binding for binding in situation.bindings if binding.released_at is None]
    return held or list(situation.bindings)


def _state(situation: Situation, readiness: Readiness) -> str:
    workload = situation.workload
    if workload.phase.is_terminal:
        return "ended"
    if workload.desired is Desired.STOPPED or workload.phase is Phase.RELEASING:
        return "ending"
    if situation.interrupted_since is not None:
        return "reconnecting"
    return "ready" if readiness.is_ready else "starting"


def _sentence(view: View, content: Json, otherwise: str) -> str:
    """For the badge: what a kernel's own events say last, where this server holds it."""
    if view.changes and content["state"] != "ended":
        return next(iter(view.changes.values())).sentence
    if content["state"] in ("ended", "ending"):
        return _end_sentence(content)
    return otherwise


def _end_sentence(content: Json) -> str:
    reason = content["reason"]
    if reason is None and content.get("exit_code") is not None:
        return f"The command ended with exit code {content['exit_code']}."
    if reason is None:
        return f"It is over ({content['phase']})."
    return " ".join(filter(None, (reason["sentence"], reason["detail"], reason["remedy"])))


def _memory_lost(view: View) -> bool:
    if view.changes:
        return any(each.reason is Reason.KERNEL_STATE_LOST for each in view.changes.values())
    return view.seen.now.workload.epoch > 1


def _ended_at(situation: Situation) -> float | None:
    return situation.allocation.ended_at if situation.workload.phase.is_terminal else None
