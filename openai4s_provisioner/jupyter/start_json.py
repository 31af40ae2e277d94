"""Starts that are no sessions yet as the REST interface shows them: the schema `Start` of rest-api.yml. Pure.

No condition of readiness is told: none holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..person_desk import View
from ..starts import Start
from .session_json import Json, Shorten, moment


def start_json(start: Start, now: float, shorten: Shorten) -> Json:
    reason = None
    if start.reason is not None:
        reason = {
            "code": str(start.reason),
            "sentence": start.sentence,
            "remedy": None,  # a refusal's sentence says what to do
            "detail": "",
            "actor": "",
        }
    return {
        "kernel_id": start.kernel_id,
        "kernel_name": start.kernel_name,
        "path": shorten(start.notebook_path) if start.notebook_path else None,
        "profile": start.profile,
        "profile_display_name": start.profile_display_name,
        "state": "checking" if start.reason is None else "refused",
        "sentence": start.sentence,
        "reason": reason,
        "asked_at": moment(start.asked_at),
        "elapsed_s": round(max(0.0, now - start.asked_at), 1),
    }


def without_sessions(starts: Sequence[Start], views: Iterable[View]) -> list[Start]:
    """Those whose kernel no session holds now."""
    held = {
        binding.kernel_id
        for view in views
        if not view.is_over
        for binding in view.seen.now.bindings
        if binding.released_at is None
    }
    return [each for each in starts if each.kernel_id not in held]
