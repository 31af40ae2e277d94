"""Tables from the scheduler's words to ours: states, exit codes, and why a job waits. Total and pure.

An unseen state is UNKNOWN with its raw text, never an end; an unseen reason is shown and never acted on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from openai4s_provisioner.orchestration.ports import Observed
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.worker.exit_codes import ExitCode

_LIVE: Mapping[str, Observed] = {
    "PENDING": Observed.PENDING,
    "CONFIGURING": Observed.PENDING,
    "POWER_UP_NODE": Observed.PENDING,
    "REQUEUED": Observed.PENDING,
    "REQUEUE_FED": Observed.PENDING,
    "REQUEUE_HOLD": Observed.PENDING,
    "RESV_DEL_HOLD": Observed.PENDING,
    "SPECIAL_EXIT": Observed.PENDING,
    "RUNNING": Observed.RUNNING,
    "RESIZING": Observed.RUNNING,
    "SIGNALING": Observed.RUNNING,
    "STAGE_OUT": Observed.ENDING,
    "SUSPENDED": Observed.PAUSED,
    "STOPPED": Observed.PAUSED,
    "COMPLETING": Observed.ENDING,
    "EXPEDITING": Observed.RUNNING,
    "UPDATE_DB": Observed.RUNNING,
}
_OVER: Mapping[str, tuple[Observed, Reason | None]] = {
    "COMPLETED": (Observed.COMPLETED, None),
    "FAILED": (Observed.FAILED, None),  # its exit code says why
    "CANCELLED": (Observed.CANCELLED, None),  # by whom is asked of accounting
    "TIMEOUT": (Observed.FAILED, Reason.TIME_LIMIT_EXCEEDED),
    "DEADLINE": (Observed.FAILED, Reason.TIME_LIMIT_EXCEEDED),
    "OUT_OF_MEMORY": (Observed.FAILED, Reason.OUT_OF_MEMORY),
    "NODE_FAIL": (Observed.FAILED, Reason.NODE_FAILED),
    "BOOT_FAIL": (Observed.FAILED, Reason.NODE_FAILED),
    "LAUNCH_FAILED": (Observed.FAILED, Reason.NODE_FAILED),
    "RECONFIG_FAIL": (Observed.FAILED, Reason.NODE_FAILED),
    "PREEMPTED": (Observed.FAILED, Reason.PREEMPTED),
    "REVOKED": (Observed.CANCELLED, Reason.ADMIN_CANCELLED),
}
_EXIT_CODES: Mapping[int, Reason] = {
    ExitCode.BAD_USAGE: Reason.BOOTSTRAP_FAILED,
    ExitCode.BAD_ATTEMPT: Reason.BOOTSTRAP_FAILED,
    ExitCode.NEVER_REGISTERED: Reason.WORKER_REGISTRATION_TIMEOUT,
    ExitCode.SERVER_GONE: Reason.SERVER_GONE,
    ExitCode.UNRECORDED: Reason.WORKER_LOST,
    126: Reason.BOOTSTRAP_FAILED,  # the node's shell: there is such a program, and it cannot be run
    127: Reason.BOOTSTRAP_FAILED,  # there is none
}
_LAUNCH_SIGNAL = 53  # how a batch script ends that could not be started at all
_CANCELLED_BY = re.compile(r"CANCELLED by (\d+)")


@dataclass(frozen=True)
class Exit:
    """As the scheduler writes it: code:signal."""

    code: int
    signal: int

    @property
    def reason(self) -> Reason:
        if self.signal == _LAUNCH_SIGNAL:
            return Reason.BOOTSTRAP_FAILED
        return Reason.WORKER_LOST if self.signal else _EXIT_CODES.get(self.code, Reason.WORKER_LOST)

    @property
    def plain_code(self) -> int | None:
        """None for an end by a signal, of which a shell makes 128 + its number."""
        return self.code if self.signal == 0 and self.code <= 128 else None


def base_state(text: str) -> str:
    """``CANCELLED`` of ``CANCELLED by 1001`` and of ``CANCELLED+``; "" for what is no state at all.

    What is still being cleared away is not over, whatever stands before that.
    """
    words = re.findall(r"[A-Z_]+", text.partition(" ")[0])
    return "COMPLETING" if "COMPLETING" in words else next(iter(words), "")


def live_state(text: str) -> Observed | None:
    return _LIVE.get(base_state(text))


def end_state(text: str) -> tuple[Observed, Reason | None] | None:
    """How it ended; None for a state that is no end, or not known."""
    return _OVER.get(base_state(text))


def canceller(text: str) -> int | None:
    """The uid in an accounting state ``CANCELLED by 1001``."""
    found = _CANCELLED_BY.match(text)
    return int(found.group(1)) if found else None


@dataclass(frozen=True)
class Waiting:
    """Read by everybody: a site's partitions, QoS and accounts are not named."""

    words: str
    remedy: str = ""  # of what never clears by itself: what to do

    @property
    def never_clears(self) -> bool:
        return bool(self.remedy)


_LESS_TIME = "Choose less time, or another profile; else ask your administrator to shorten this one's"
_FEWER_MACHINES = "Choose a profile with fewer machines"
_ASK_FOR_PROFILE = "Ask your administrator to correct this profile, or choose another one"
# What no other job's end, and no machine's return, can change: only another profile, or the site's own rules.
_NEVER: Mapping[str, Waiting] = {
    "PartitionTimeLimit": Waiting("the profile asks for more time than its machines are granted for", _LESS_TIME),
    "AccountNotAllowed": Waiting("what the profile is charged to may not use its machines", _ASK_FOR_PROFILE),
    "QOSNotAllowed": Waiting("the profile may not use its machines on the terms that it names", _ASK_FOR_PROFILE),
    "BadConstraints": Waiting("no machine has everything that the profile demands", _ASK_FOR_PROFILE),
    "InvalidAccount": Waiting("what the profile is charged to does not exist any more", _ASK_FOR_PROFILE),
    "InvalidQOS": Waiting("the terms that the profile names do not exist any more", _ASK_FOR_PROFILE),
    "DependencyNeverSatisfied": Waiting("what it depends on will never be", _ASK_FOR_PROFILE),
    "ReservationDeleted": Waiting("the reservation that the profile names was deleted", _ASK_FOR_PROFILE),
    "DeadLine": Waiting("it could not start before its deadline", "Start it again, or choose a smaller profile"),
    "MaxMemPerLimit": Waiting(
        "the profile asks for more memory on one machine than this cluster grants", "Choose less memory"
    ),
    "PartitionConfig": Waiting(
        "the profile asks for more than its machines have, or their rules exclude it", _ASK_FOR_PROFILE
    ),
}
_WAITS: Mapping[str, str] = {
    "None": "it was handed in and is about to be looked at",
    "Resources": "it is next, and waits for machines to become free",
    "Priority": "others with higher priority come first",
    "Dependency": "it waits for another job",
    "BeginTime": "its earliest start has not come yet",
    "Licenses": "it waits for a license",
    "Reservation": "it waits for its reservation to begin",
    "Cleaning": "machines are being cleaned up after an earlier job",
    "Prolog": "its machine is being prepared",
    "NodeDown": "a machine that it needs is down",
    "PartitionDown": "its machines are closed for the time being",
    "PartitionInactive": "its machines take up no work for the time being",
    "PartitionNodeLimit": (
        "machines that it needs are out of service, or the profile asks for more of them than may be had together now"
    ),
    "AssociationTimeLimit": "the time that your group may use is used up, or the profile asks for more than is left",
    "QOSTimeLimit": "the time granted on its terms is used up, or the profile asks for more than is left",
    "JobHoldMaxRequeue": "it is on hold after too many starts; ask your administrator, or shut the kernel down",
    "JobArrayTaskLimit": "others of its kind run already",
    "JobHeldUser": "its owner has put it on hold; release it, or shut the kernel down",
    "JobHeldAdmin": "an administrator has put it on hold; ask why, or shut the kernel down",
    "SchedDefer": "the scheduler defers starts for the time being",
    "SystemFailure": "the scheduler reports a failure of its own",
    "FedJobLock": "clusters are agreeing on who runs it",
    "BurstBufferResources": "it waits for a burst buffer",
    "BurstBufferStageIn": "its burst buffer is being filled",
    "FrontEndDown": "no front end is up",
    "MaxBfStartJobs": "enough others are being started first",
    "ReqNodeNotAvail": "machines that it may need are not available now; it goes on when they are",
    "NonZeroExitCode": "it ended badly before, and is held",
    "PowerNotAvail": "there is not enough power for it now",
    "PowerReserved": "power is reserved for others",
    "BlockMaxError": "machines report errors",
    "BlockFreeAction": "machines are being freed",
    "BurstBufferOperation": "its burst buffer is being worked on",
    "OutOfMemory": "it ran out of memory before, and is held",
    "JobLaunchFailure": "its start failed, and it is tried again",
}
# The long form of what the first word of another reason says: machines that are down, drained or reserved.
_OUT_OF_SERVICE = "nodes required for job are down"
TOO_MANY_NODES = Waiting("the profile asks for more machines than there are for it", _FEWER_MACHINES)
_HELD = "the scheduler holds it after a failed start; ask your administrator, or shut the kernel down"
_UNKNOWN_REASON = "the scheduler has it wait"
# What one job may have at most, or must have at least, is decided by the profile, and by no other job's end.
_OWN_REMEDY = "Choose another profile, or ask your administrator what you may have"
_OWN_LIMIT = re.compile(r"(?:QOS|Assoc)Max\w*Per(?:Job|Node)(?:Limit)?|QOSMin\w+")
_LIMIT = re.compile(r"(?:QOS|Assoc|Association)(?:Grp|Max|Job|Resource|Usage)\w*|Max\w+PerAccount|AccountingPolicy")


def is_node_limit(reason: str) -> bool:
    """Which is said of machines that are out of service as well as of too many that are asked for."""
    return re.split(r"[\s,(]", reason.strip("() "), maxsplit=1)[0] == "PartitionNodeLimit"


def waiting(reason: str) -> Waiting:
    """Why a job waits, in our words. Raw text may hold commas, spaces, and lists of machines."""
    code = re.split(r"[\s,(]", reason.strip("() "), maxsplit=1)[0]
    lowered = reason.lower()
    if "held" in lowered and code not in _WAITS:
        return Waiting(_HELD)
    if code in _NEVER:
        return _NEVER[code]
    if code in _WAITS:
        return Waiting(_WAITS[code])
    if _OWN_LIMIT.fullmatch(code):
        return Waiting("the profile asks for more, or for less, than one session of yours may have here", _OWN_REMEDY)
    if _LIMIT.fullmatch(code):
        return Waiting("you, or your group, use as much as is allowed at once; it goes on when some of that ends")
    if "requeued" in lowered:
        return Waiting("it was put back into the queue")
    if "UnavailableNodes" in reason or "unavailable" in lowered or _OUT_OF_SERVICE in lowered:
        return Waiting(_WAITS["ReqNodeNotAvail"])
    return Waiting(_UNKNOWN_REASON)
