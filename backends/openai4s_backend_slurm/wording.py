"""What the scheduler's commands say when they fail, sorted by what it means for whoever asked.

Total: a text that is not known here has an outcome of its own, "unknown", which never counts as a no. Pure.
"""

from __future__ import annotations

import enum
import re

from openai4s_provisioner.orchestration.reasons import Reason


class Complaint(enum.Enum):
    NOT_ASKED = "nothing was sent"
    UNREACHABLE = "could not be asked"
    DENIED = "this account may not"
    REFUSED = "a definite no"
    UNKNOWN = "not known here"


# The first that matches counts. Doubt comes before certainty.
_COMPLAINTS: tuple[tuple[Complaint, str], ...] = (
    (
        Complaint.UNREACHABLE,
        r"unable to contact slurm controller|socket timed out|connect failure|send failure|receive failure"
        r"|zero bytes were transmitted|connection (?:refused|reset|timed out)|backup controller in standby"
        r"|munge|protocol authentication error|communication failure|slurmctld.*not responding|transport endpoint"
        r"|problem talking to|unable to connect to database|persistent connection|resource temporarily unavailable"
        r"|header lengths|insane message length|unexpected (?:message|rpc) received|incompatible versions"
        r"|shutting down|try again|temporarily|timed out|timeout|broken pipe|no route to host|network is unreachable"
        r"|job violates.*rate limit|slurm is busy|out of memory|cannot allocate",
    ),
    (
        Complaint.NOT_ASKED,
        r"could not establish a configuration source|unable to (?:process|open|read) (?:the )?conf"
        r"|s_p_parse_file|unable to process configuration file|resolve_ctls_from_dns_srv",
    ),
    (Complaint.DENIED, r"access/permission denied|user id is missing|not authorized|permission denied"),
    (
        Complaint.REFUSED,
        r"invalid (?:partition|qos|account|generic resource|feature|reservation|node name|wckey|license|job id"
        r"|dependency|time|numeric|argument|user|trackable resource|tres|specification|job constraint|gres"
        r"|--|cluster name|option)"
        r"|requested node configuration is not available|more processors requested than permitted"
        r"|requested (?:time limit|partition|reservation|node|nodes|geometry|gres|licenses?)\b.*(?:invalid|not|exceed)"
        r"|required (?:partition|node) not available|unable to open file|does not look like a batch script"
        r"|unrecognized option|unknown option|invalid option|requires an argument|memory specification can not be"
        r"|job violates|association|exceeds? |only permitted by root|job dependency|too many|limit"
        r"|accounting storage is disabled|not running a supported accounting_storage|not allowed|no such "
        r"|must (?:specify|be|have|request)|unable to resolve|unspecified error|node count specification invalid"
        r"|missing|batch job submission failed: (?:job|script|pathname|invalid)|burst buffer|can ?not be |reject",
    ),
)
_PATTERNS = tuple((complaint, re.compile(pattern, re.IGNORECASE)) for complaint, pattern in _COMPLAINTS)

# Why a submission was refused, in our words.
_REFUSALS: tuple[tuple[str, Reason, str], ...] = (
    (r"partition", Reason.INVALID_SPEC, "The profile names a partition that this cluster does not have for you"),
    (r"qos", Reason.INVALID_SPEC, "The profile names a QoS that you may not use"),
    (r"account|association", Reason.AUTHORIZATION_DENIED, "You may not submit under this account"),
    (r"reservation", Reason.INVALID_SPEC, "The profile names a reservation that you may not use"),
    (r"gres|generic resource", Reason.INVALID_SPEC, "The profile asks for a kind of device that does not exist here"),
    (r"feature|constraint", Reason.INVALID_SPEC, "The profile asks for a feature that no machine here has"),
    (r"license", Reason.INVALID_SPEC, "The profile asks for a license that does not exist here"),
    (
        r"node configuration is not available|node name|processors requested|node count",
        Reason.UNSCHEDULABLE,
        "No machine of this cluster can ever grant what the profile asks for",
    ),
    (r"unrecognized option|unknown option|invalid option", Reason.INVALID_SPEC, "This site refuses one of the options"),
    (r"limit|exceed|too many|violates", Reason.QUOTA_EXCEEDED, "This cluster's limits do not allow a further job"),
)
_OVER = re.compile(
    r"invalid job id|job/step already (?:completing|completed)|job has already (?:finished|completed)", re.I
)
_UNKNOWN_OPTION = re.compile(r"(?:unrecognized|unknown|invalid) option[^-\n]*(--?[A-Za-z][\w-]*)", re.IGNORECASE)


def complaint_of(text: str) -> Complaint:
    """What a failed command's words mean."""
    return next((complaint for complaint, pattern in _PATTERNS if pattern.search(text)), Complaint.UNKNOWN)


def refusal_of(text: str) -> tuple[Reason, str]:
    """The reason and the sentence of a definite no."""
    for pattern, reason, sentence in _REFUSALS:
        if re.search(pattern, text, re.IGNORECASE):
            return reason, sentence
    return Reason.BACKEND_REJECTED, "The cluster refused the job"


def unknown_option(text: str) -> str:
    """The option that a command does not know, as ``--name``; "" when that is not what it complains about."""
    found = _UNKNOWN_OPTION.search(text)
    return found.group(1) if found else ""


def is_over(text: str) -> bool:
    """Whether a command that was to end a job complains that there is nothing to end."""
    return _OVER.search(text) is not None


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""
