"""Every state that is documented, every reason to wait that the programs know, and those that nobody knows yet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai4s_backend_slurm import states
from openai4s_backend_slurm.states import Exit
from openai4s_provisioner.orchestration.ports import Observed
from openai4s_provisioner.orchestration.reasons import Reason

VOCABULARY = Path(states.__file__).with_name("vocabulary.txt").read_text(encoding="utf-8").splitlines()
FAILED, CANCELLED = Observed.FAILED, Observed.CANCELLED
OVER = {
    "COMPLETED": (Observed.COMPLETED, None),
    "FAILED": (FAILED, None),
    "CANCELLED": (CANCELLED, None),
    "CANCELLED by 1001": (CANCELLED, None),
    "CANCELLED+": (CANCELLED, None),
    "TIMEOUT": (FAILED, Reason.TIME_LIMIT_EXCEEDED),
    "DEADLINE": (FAILED, Reason.TIME_LIMIT_EXCEEDED),
    "OUT_OF_MEMORY": (FAILED, Reason.OUT_OF_MEMORY),
    "NODE_FAIL": (FAILED, Reason.NODE_FAILED),
    "BOOT_FAIL": (FAILED, Reason.NODE_FAILED),
    "LAUNCH_FAILED": (FAILED, Reason.NODE_FAILED),
    "RECONFIG_FAIL": (FAILED, Reason.NODE_FAILED),
    "PREEMPTED": (FAILED, Reason.PREEMPTED),
    "REVOKED": (CANCELLED, Reason.ADMIN_CANCELLED),
}
LIVE = {
    Observed.PENDING: "PENDING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT POWER_UP_NODE",
    Observed.RUNNING: "RUNNING RESIZING SIGNALING UPDATE_DB EXPEDITING",
    Observed.PAUSED: "SUSPENDED STOPPED",
    Observed.ENDING: "COMPLETING STAGE_OUT CANCELLED,COMPLETING COMPLETED+COMPLETING",
}
NEVER = """
    PartitionTimeLimit AccountNotAllowed QOSNotAllowed BadConstraints InvalidAccount InvalidQOS
    DependencyNeverSatisfied ReservationDeleted DeadLine QOSMaxCpuPerJobLimit QOSMaxNodePerJobLimit
    QOSMaxWallDurationPerJobLimit QOSMaxCpuMinutesPerJobLimit QOSMinCpuNotSatisfied QOSMinGRES QOSMinMemory QOSMinNode
    AssocMaxCpuPerJobLimit AssocMaxNodePerJobLimit AssocMaxWallDurationPerJobLimit AssocMaxMemPerJob AssocMaxGRESPerJob
    AssocMaxBillingPerJob QOSMaxGRESPerNode MaxMemPerLimit PartitionConfig"""
WAITS = """None Resources Priority Dependency BeginTime Licenses Reservation Cleaning Prolog NodeDown PartitionDown
    PartitionInactive JobArrayTaskLimit JobHeldUser JobHeldAdmin SchedDefer ReqNodeNotAvail QOSGrpCpuLimit QOSGrpGRES
    QOSMaxJobsPerUserLimit QOSMaxCpuPerUserLimit AssocGrpJobsLimit AssocMaxJobsLimit AssociationJobLimit QOSJobLimit
    QOSUsageThreshold QOSResourceLimit MaxJobsPerAccount MaxGRESPerAccount AssocGrpMemLimit AssocGrpCPURunMinutesLimit
    QOSMaxSubmitJobPerUserLimit FrontEndDown FedJobLock PowerNotAvail BurstBufferResources
    PartitionNodeLimit AssociationTimeLimit QOSTimeLimit JobHoldMaxRequeue"""


@pytest.mark.parametrize("state", OVER)
def test_how_a_job_ended(state: str) -> None:
    assert states.end_state(state) == OVER[state]
    assert states.live_state(state) is None


@pytest.mark.parametrize(("observed", "state"), [(o, word) for o, words in LIVE.items() for word in words.split()])
def test_a_job_that_lives_is_not_over(observed: Observed, state: str) -> None:
    assert states.live_state(state) is observed
    assert states.end_state(state) is None


@pytest.mark.parametrize(
    "state", ["", "NEW_STATE", "completed", "COMPLETE", "OUT_OF_ME+", "\0", "0", "None", "FAILEDX"]
)
def test_a_state_that_nobody_knows_is_neither(state: str) -> None:
    assert states.end_state(state) is None
    assert states.live_state(state) is None


@given(st.text())
def test_no_text_but_the_known_ones_is_an_end(text: str) -> None:
    if states.end_state(text) is not None:
        assert states.base_state(text) in {word.partition(" ")[0].rstrip("+") for word in OVER}


def test_whoever_cancelled_it_is_in_the_state() -> None:
    assert states.canceller("CANCELLED by 1001") == 1001
    assert states.canceller("CANCELLED") is None
    assert states.canceller("TIMEOUT by 7") is None


@pytest.mark.parametrize("reason", NEVER.split())
def test_what_can_never_clear(reason: str) -> None:
    why = states.waiting(reason)
    assert why.never_clears
    assert why.words
    assert why.remedy


@pytest.mark.parametrize("reason", WAITS.split())
def test_what_clears_by_itself_has_words_of_its_own(reason: str) -> None:
    why = states.waiting(reason)
    assert not why.never_clears
    assert why.words != states.waiting("SomethingNew").words


@pytest.mark.parametrize("reason", [*NEVER.split(), *WAITS.split(), "SomethingNew", "JobHoldMaxRequeue"])
def test_what_everybody_reads_names_no_partition_and_no_qos(reason: str) -> None:
    why = states.waiting(reason)
    assert not re.search(r"(?i)partition|qos|quality of service", why.words + why.remedy)


@pytest.mark.parametrize(
    "reason",
    [
        "ReqNodeNotAvail, UnavailableNodes:c1",
        "ReqNodeNotAvail, UnavailableNodes:",
        "(ReqNodeNotAvail, May be reserved for other job)",
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
        "launch failed requeued held",
        "job requeued in held state",
        "SomethingNew",
        "",
    ],
)
def test_what_may_clear_is_never_acted_on(reason: str) -> None:
    assert not states.waiting(reason).never_clears


def test_machines_out_of_service_are_named_as_the_cause() -> None:
    for reason in ("ReqNodeNotAvail, UnavailableNodes:c1", "Nodes required for job are DOWN, DRAINED or reserved for"):
        assert "not available now" in states.waiting(reason).words
    both = states.waiting("PartitionNodeLimit").words
    assert "out of service" in both
    assert "asks for more of them" in both


def test_no_words_of_ours_are_the_scheduler_s() -> None:
    never = [*states._NEVER.values(), states.TOO_MANY_NODES]
    told = [text for each in never for text in (each.words, each.remedy)] + [*states._WAITS.values(), states._HELD]
    words = [line for line in VOCABULARY if line and not line.startswith("#")]
    assert not [(text, word) for text in told for word in words if word.lower() in text.lower()]


def test_a_held_job_is_explained() -> None:
    for reason in ("launch failed requeued held", "job requeued in held state", "JobHeldUser", "JobHeldAdmin"):
        assert "hold" in states.waiting(reason).words


@given(st.text())
def test_any_reason_has_words_of_ours(reason: str) -> None:
    words = states.waiting(reason).words
    assert words
    assert reason.strip() not in words or len(reason.strip()) < 12


@pytest.mark.parametrize(
    ("exit_", "reason", "plain"),
    [
        (Exit(1, 0), Reason.WORKER_LOST, 1),
        (Exit(0, 9), Reason.WORKER_LOST, None),
        (Exit(0, 53), Reason.BOOTSTRAP_FAILED, None),
        (Exit(137, 0), Reason.WORKER_LOST, None),
        (Exit(127, 0), Reason.BOOTSTRAP_FAILED, 127),
        (Exit(126, 0), Reason.BOOTSTRAP_FAILED, 126),
        (Exit(64, 0), Reason.BOOTSTRAP_FAILED, 64),
        (Exit(78, 0), Reason.BOOTSTRAP_FAILED, 78),
        (Exit(69, 0), Reason.WORKER_REGISTRATION_TIMEOUT, 69),
        (Exit(75, 0), Reason.SERVER_GONE, 75),
        (Exit(74, 0), Reason.WORKER_LOST, 74),
    ],
)
def test_what_an_exit_says(exit_: Exit, reason: Reason, plain: int | None) -> None:
    assert (exit_.reason, exit_.plain_code) == (reason, plain)
