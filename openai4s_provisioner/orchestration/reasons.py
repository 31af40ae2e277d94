"""Why a workload was refused, stopped or lost: one code, one sentence for a person each.

The sentence says what happened and what to do now. Nothing matches on its text.
"""

from __future__ import annotations

import enum


class Reason(enum.StrEnum):
    AUTHENTICATION_FAILED = "AUTHENTICATION_FAILED"
    AUTHORIZATION_DENIED = "AUTHORIZATION_DENIED"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    POLICY_REJECTED = "POLICY_REJECTED"
    INVALID_SPEC = "INVALID_SPEC"
    BACKEND_UNAVAILABLE = "BACKEND_UNAVAILABLE"
    BACKEND_SUBMISSION_UNKNOWN = "BACKEND_SUBMISSION_UNKNOWN"
    BACKEND_REJECTED = "BACKEND_REJECTED"
    UNSCHEDULABLE = "UNSCHEDULABLE"
    BOOTSTRAP_FAILED = "BOOTSTRAP_FAILED"
    WORKER_REGISTRATION_TIMEOUT = "WORKER_REGISTRATION_TIMEOUT"
    WORKER_LOST = "WORKER_LOST"
    NODE_FAILED = "NODE_FAILED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    TIME_LIMIT_EXCEEDED = "TIME_LIMIT_EXCEEDED"
    PREEMPTED = "PREEMPTED"
    USER_CANCELLED = "USER_CANCELLED"
    ADMIN_CANCELLED = "ADMIN_CANCELLED"
    SESSION_IDLE_TIMEOUT = "SESSION_IDLE_TIMEOUT"
    SESSION_MAX_LIFETIME_EXCEEDED = "SESSION_MAX_LIFETIME_EXCEEDED"
    STALE_EPOCH = "STALE_EPOCH"
    DUPLICATE_SUBMISSION = "DUPLICATE_SUBMISSION"
    KERNEL_STATE_LOST = "KERNEL_STATE_LOST"
    ISOLATION_UNVERIFIED = "ISOLATION_UNVERIFIED"
    WORKSPACE_UNREACHABLE = "WORKSPACE_UNREACHABLE"
    KERNEL_START_FAILED = "KERNEL_START_FAILED"
    SERVER_GONE = "SERVER_GONE"

    @property
    def sentence(self) -> str:
        return _SENTENCES[self]

    @property
    def what_happened(self) -> str:
        """The sentence without its remedy."""
        return _SENTENCES[self].rpartition(". ")[0] + "."

    @property
    def remedy(self) -> str:
        """What to do now, which every sentence ends with."""
        return _SENTENCES[self].rpartition(". ")[2]


# Of a kernel alone, whose session goes on: the sentence of OUT_OF_MEMORY is about the whole session's end.
KERNEL_OUT_OF_MEMORY = "The kernel used more memory than its session may have."

_SENTENCES = {
    Reason.AUTHENTICATION_FAILED: (
        "A worker could not prove which session it belongs to, so it was turned away. Start the kernel again."
    ),
    Reason.AUTHORIZATION_DENIED: "This session belongs to somebody else. Ask its owner, or start your own.",
    Reason.QUOTA_EXCEEDED: (
        "You already hold as many sessions as are allowed at once. Shut one down, then start this one again."
    ),
    Reason.POLICY_REJECTED: (
        "This site's rules do not allow that request. Choose another profile, or ask your administrator."
    ),
    Reason.INVALID_SPEC: (
        "The request cannot be carried out as it stands. Correct what is named, then start the kernel again."
    ),
    Reason.BACKEND_UNAVAILABLE: "The place where sessions run does not answer. Try again in a few minutes.",
    Reason.BACKEND_SUBMISSION_UNKNOWN: (
        "It is not known yet whether the request arrived. It is being looked up; nothing is submitted twice."
    ),
    Reason.BACKEND_REJECTED: (
        "The request was refused by the place where it was to run. Choose another profile, or ask your administrator."
    ),
    Reason.UNSCHEDULABLE: "No machine can ever satisfy this request. Choose a smaller profile.",
    Reason.BOOTSTRAP_FAILED: (
        "The allocation was granted, but the worker in it could not be started. See the session's log, then start "
        "the kernel again."
    ),
    Reason.WORKER_REGISTRATION_TIMEOUT: (
        "The allocation runs, but its worker did not connect in time, so it was given back. See the session's log."
    ),
    Reason.WORKER_LOST: (
        "The worker that ran this kernel ended unexpectedly. The kernel's memory is lost. Start the kernel again."
    ),
    Reason.NODE_FAILED: "The machine that ran this kernel failed. The kernel's memory is lost. Start the kernel again.",
    Reason.OUT_OF_MEMORY: (
        "The session used more memory than its profile allows and was ended. Choose a profile with more memory."
    ),
    Reason.TIME_LIMIT_EXCEEDED: (
        "The session reached its time limit and was ended. Start the kernel again, or choose a longer profile."
    ),
    Reason.PREEMPTED: "The allocation was taken for a request with higher priority. Start the kernel again.",
    Reason.USER_CANCELLED: "The session was stopped at its owner's request. Start the kernel again when you need it.",
    Reason.ADMIN_CANCELLED: (
        "The session was stopped from outside. Ask your administrator why, or start the kernel again."
    ),
    Reason.SESSION_IDLE_TIMEOUT: (
        "The session was idle for longer than its profile allows and was released. Start the kernel again."
    ),
    Reason.SESSION_MAX_LIFETIME_EXCEEDED: (
        "The session reached its longest allowed life and was released. Start the kernel again."
    ),
    Reason.STALE_EPOCH: (
        "Something that belongs to an earlier attempt of this session was turned away. Nothing needs to be done."
    ),
    Reason.DUPLICATE_SUBMISSION: (
        "The same request was found running twice; all but one were ended. Nothing needs to be done."
    ),
    Reason.KERNEL_STATE_LOST: (
        "The kernel was started afresh: variables and imports are gone. Run your cells again from the top."
    ),
    Reason.ISOLATION_UNVERIFIED: (
        "Sessions could not be proven to be isolated from each other here, so none is started. Carry out the "
        "remedy that is named, then start the kernel again."
    ),
    Reason.WORKSPACE_UNREACHABLE: (
        "The session's machine cannot use the workspace folder. Check the folder that is named, then start the "
        "kernel again."
    ),
    Reason.KERNEL_START_FAILED: (
        "The kernel's process did not start or did not answer. See the lines quoted from its output."
    ),
    Reason.SERVER_GONE: (
        "The Jupyter server that owned this session went away, so the session was ended. Start the kernel again."
    ),
}
