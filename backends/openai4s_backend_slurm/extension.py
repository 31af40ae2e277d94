"""Lets a running job end later, where the site allows its owner to ask for that.

Most sites let only operators raise a time limit: then the controller's "no" is passed on as one sentence. The new limit
is stated whole, never as "more", so that asking twice extends once. It blocks, so it is called in a thread.
"""

from __future__ import annotations

import logging
import math

from openai4s_provisioner.orchestration.errors import CouldNotAsk, Refused
from openai4s_provisioner.orchestration.models import ResourceProfile
from openai4s_provisioner.orchestration.reasons import Reason

from . import broker, states
from .broker import Broker, BrokerError
from .lookup import Lookup, on
from .parse import JobName, QueueRow
from .script import job_name

_log = logging.getLogger(__name__)
_MINUTE_S = 60  # limits are whole minutes


def can_extend(profile: ResourceProfile) -> bool:
    """Whether the administrator has said that sessions of this profile may be longer."""
    return profile.max_walltime_s > 0


def extend(ask: Broker, lookup: Lookup, name: JobName, token: str, profile: ResourceProfile, seconds: int) -> float:
    """The new end. Raises Refused or CouldNotAsk."""
    row = _running(lookup, name, token)
    assert row.starts_at is not None
    assert row.ends_at is not None
    minutes = math.ceil((row.ends_at - row.starts_at + seconds) / _MINUTE_S)
    if minutes * _MINUTE_S > profile.max_walltime_s:
        left = max(0, int(profile.max_walltime_s - (row.ends_at - row.starts_at)) // _MINUTE_S)
        raise Refused(
            Reason.POLICY_REJECTED,
            f"Sessions of profile {profile.name!r} run for at most {profile.max_walltime_s // _MINUTE_S} minutes in "
            f"all, so this one can be extended by {left} minutes at most. Ask for that, or save your work.",
        )
    try:
        ask.run(["scontrol", *on(name.cluster), "update", f"JobId={name.number}", f"TimeLimit={minutes}"])
    except (broker.Denied, broker.Refused) as error:
        _log.warning("an extension was refused: %s", error)
        raise Refused(
            Reason.AUTHORIZATION_DENIED,
            "This cluster lets only its operators extend a running session. Save your work, ask them, or start again "
            "with a longer profile.",
        ) from error
    except BrokerError as error:
        raise CouldNotAsk(str(error)) from error
    return row.starts_at + minutes * _MINUTE_S


def _running(lookup: Lookup, name: JobName, token: str) -> QueueRow:
    try:
        rows = lookup.queue(name.cluster)
    except BrokerError as error:
        raise CouldNotAsk(f"the cluster's queue could not be asked: {error}") from error
    row = next((each for each in rows if each.number == name.number and each.name == job_name(token)), None)
    if row is None or states.end_state(row.state) is not None or row.starts_at is None:
        raise Refused(Reason.INVALID_SPEC, "This session does not run any more, or not yet.")
    if row.ends_at is None:
        raise Refused(Reason.INVALID_SPEC, "This session has no time limit that could be extended.")
    return row
