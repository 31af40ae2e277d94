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


# The first that matches counts: doubt comes before certainty. The words are the scheduler's own, of all its versions.
_UNREACHABLE = (
    r"unable to contact slurm controller",
    r"socket timed out|zero bytes were transmitted|header lengths are longer|insane message length",
    r"communication (?:connection|shutdown) failure|message (?:send|receive) failure|failed to send entire message",
    r"received zero length message|unexpected (?:message|rpc) received|incompatible versions of client and server",
    r"connection (?:refused|reset|timed out)|broken pipe|no route to host|network is unreachable|transport endpoint",
    r"(?:backup controller|controller is) in standby|operation now in progress|resource temporarily unavailable",
    r"munge|protocol authentication error|authentication (?:agent|credential|public key)",
    r"error generating job credential",
    r"problem talking to the database|unable to connect to database|persistent connection|persistinit",
    r"try again|not available right now|temporarily (?:disabled|unavailable)|rate limit|memory management error",
    r"slurm internal error|data ?base connection reference|timed out",
)
_NOT_ASKED = (
    r"could not establish a configuration source|unable to process configuration file|s_p_parse_file",
    r"unable to (?:read|parse|open) .*slurm\.conf|resolve_ctls_from_dns_srv",
)
_DENIED = (
    r"access/permission denied|access denied|only permitted by root|not authorized|burst buffer permission denied",
)
_REFUSED = (
    r"invalid (?:partition name|qos|account|wckey|feature|license|node name|time|time-min|generic resource|gres)",
    r"invalid user id",
    r"invalid (?:group id|cluster name|--nice|mcs_label|job array|trackable resource|tres|preferred feature|job id)",
    r"invalid (?:knl|accounting frequency|numeric value|--[a-z-]+|[a-z-]+ specification|option|argument)",
    r"requested (?:node configuration is not available|nodes not in this partition|time limit is invalid)",
    r"requested (?:reservation is invalid|more tasks than available|account has breached)",
    r"requested operation (?:not supported|is presently disabled)",
    r"requested gres option unsupported|requested topology configuration",
    r"more processors requested than permitted|(?:node|cpu|task) count specification invalid|no partition specified",
    r"user's group not permitted to use this partition|required (?:node|partition) not available",
    r"memory required by task is not available|job size specification needs to be provided|pathname of a file",
    r"job violates accounting/qos policy|time limit specification required|only batch jobs are accepted",
    r"job script not specified|job dependency problem|circular job dependency|qos preemption loop|generic error",
    r"burst buffer (?:request invalid|resource limit exceeded)|duplicate generic resource|active features not subset",
    r"no eligible clusters|container (?:runtime not configured|support is not configured)|multiple knl",
    r"system submissions disabled|environment is missing in job|unspecified error|x11 forwarding not available",
    r"unable to open file|does not look like a batch script|pipe or special file|script .*(?:too big|is empty)",
    r"unrecognized option|unknown option|invalid option|requires an argument|ambiguous|doesn't allow an argument",
    r"accounting storage is disabled|not running a supported accounting_storage|only 'accounting_storage/",
    r"job has already finished|job/step already complet|job is not (?:running|suspended|pending)",
)
_COMPLAINTS = (
    (Complaint.UNREACHABLE, _UNREACHABLE),
    (Complaint.NOT_ASKED, _NOT_ASKED),
    (Complaint.DENIED, _DENIED),
    (Complaint.REFUSED, _REFUSED),
)
_PATTERNS = tuple((complaint, re.compile("|".join(words), re.IGNORECASE)) for complaint, words in _COMPLAINTS)

# A controller that does not believe who asks closes the connection without a word.
_NOT_BELIEVED = re.compile(r"zero bytes were transmitted|protocol authentication error|rewound|expired", re.IGNORECASE)
_NOT_BELIEVED_HINT = (
    " (the controller does not accept this machine's credentials: the clocks, or the keys of munge, of the two may"
    " differ; ask your administrator)"
)

# Why a submission was refused, in our words.
_REFUSALS: tuple[tuple[str, Reason, str], ...] = (
    (r"(?:permission|access) denied|not authorized", Reason.AUTHORIZATION_DENIED, "You may not submit this job here"),
    (r"violates|limit|exceed|too many", Reason.QUOTA_EXCEEDED, "This cluster's limits do not allow this job"),
    (r"unrecognized option|unknown option|invalid option", Reason.INVALID_SPEC, "This site refuses one of the options"),
    (r"invalid account|association", Reason.AUTHORIZATION_DENIED, "You may not submit under this account"),
    (r"reservation", Reason.INVALID_SPEC, "The profile names a reservation that you may not use"),
    (r"qos", Reason.INVALID_SPEC, "The profile names terms of service that you may not use"),
    (r"partition", Reason.INVALID_SPEC, "The profile names machines that this cluster does not have for you"),
    (r"gres|generic resource", Reason.INVALID_SPEC, "The profile asks for a kind of device that does not exist here"),
    (r"feature|constraint", Reason.INVALID_SPEC, "The profile asks for a feature that no machine here has"),
    (r"license", Reason.INVALID_SPEC, "The profile asks for a license that does not exist here"),
    (
        r"node configuration is not available|node name|processors requested|count specification|memory required",
        Reason.UNSCHEDULABLE,
        "No machine of this cluster can ever grant what the profile asks for",
    ),
)
_PLAIN_OPTIONS = frozenset({"comment", "parsable", "no-requeue", "open-mode", "exclusive", "constraint", "mem", "time"})
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


def remedy_of(text: str) -> str:
    """What to do about a definite no. An option is named only where its name is no word of the scheduler's."""
    option = unknown_option(text)
    if not option:
        return "Ask your administrator about it"
    named = f"Add {option}" if option.lstrip("-") in _PLAIN_OPTIONS else "Add the option that the site does not know"
    return f"{named} to remove_options of the profile"


def unknown_option(text: str) -> str:
    """The option that a command does not know, as ``--name``; "" when that is not what it complains about."""
    found = _UNKNOWN_OPTION.search(text)
    return found.group(1) if found else ""


def is_over(text: str) -> bool:
    """Whether a command that was to end a job complains that there is nothing to end."""
    return _OVER.search(text) is not None


def hint_of(line: str) -> str:
    """What a line that explains nothing usually means; "" for any other."""
    return _NOT_BELIEVED_HINT if _NOT_BELIEVED.search(line) else ""


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "".join(each if each.isprintable() else "?" for each in lines[-1][:500]) if lines else ""
