"""What is said of a job, by whichever witnesses there are: the queue, accounting, what the job wrote down itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openai4s_backend_slurm import judge as judge_module
from openai4s_backend_slurm import script
from openai4s_backend_slurm.broker import Answer, BrokerError, Refused, Unreachable
from openai4s_backend_slurm.judge import Judge
from openai4s_backend_slurm.lookup import Lookup, handle_of
from openai4s_backend_slurm.parse import JobName, QueueRow
from openai4s_backend_slurm.places import Places
from openai4s_provisioner.orchestration.errors import CouldNotAsk
from openai4s_provisioner.orchestration.ports import Observation, Observed
from openai4s_provisioner.orchestration.reasons import Reason

TOKEN, NAME = "abc", JobName(4242)
HANDLE = handle_of(NAME, TOKEN)
NO_ACCOUNTING = Refused("sacct: Slurm accounting storage is disabled")
AWAY = Unreachable("sacct: Connection refused")


class BrokerWithAnswers:
    """Says of each command what it is to say."""

    def __init__(self, **answers: str | BrokerError) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []

    def run(self, argv: list[str], keep_fds: Any = ()) -> Answer:
        self.asked.append(list(argv))
        answer = self.answers.get(argv[0], "")
        if isinstance(answer, BrokerError):
            raise answer
        return Answer(answer, "")


class Bench:
    def __init__(self, base: Path, **answers: str | BrokerError) -> None:
        self.attempt = base / "attempt"
        self.attempt.mkdir()
        (base / "state").mkdir()
        self.places = Places(base / "state")
        self.places.remember(TOKEN, self.attempt)
        self.broker = BrokerWithAnswers(**{"sacct": NO_ACCOUNTING, **answers})
        self.cancelled: list[int] = []
        self.now = 1_800_000_000.0
        lookup = Lookup(self.broker, self.places, "")  # type: ignore[arg-type]
        self.judge = Judge(
            lookup, self.places, lambda name, token: self.cancelled.append(name.number), clock=self.clock
        )

    def clock(self) -> float:
        return self.now

    def see(self, state: str = "", reason: str = "None", **fields: Any) -> Observation:
        """Of a job with this state in the queue; of one that is not there when there is none."""
        row = QueueRow(4242, state, script.job_name(TOKEN), 1, None, None, "c1", "cpu", 1, reason)
        rows = [row.__class__(**{**row.__dict__, **fields})] if state else []
        return self.judge.judge({HANDLE: (NAME, TOKEN)}, rows, "")[HANDLE]

    def writes(self, name: str, text: str) -> None:
        (self.attempt / name).write_text(text)


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    return lambda **answers: Bench(tmp_path, **answers)


def accounting(state: str, exit_: str = "0:0") -> str:
    return f"4242|{state}|{exit_}|1|2|c1|{script.job_name(TOKEN)}\n"


# Gone from the queue.


def test_no_witness_is_no_end(bench: Any) -> None:
    assert bench().see().state is Observed.GONE


@pytest.mark.parametrize("sacct", [NO_ACCOUNTING, AWAY, ""])
@pytest.mark.parametrize(
    ("record", "state", "reason"),
    [
        ("0 4242\n", Observed.COMPLETED, None),
        ("3 4242\n", Observed.FAILED, Reason.WORKER_LOST),
        ("127 4242\n", Observed.FAILED, Reason.BOOTSTRAP_FAILED),
        ("75 4242\n", Observed.FAILED, Reason.SERVER_GONE),
        ("0 17\n", Observed.GONE, None),  # another job's
        ("garbage", Observed.GONE, None),
    ],
)
def test_without_accounting_the_job_s_own_record_is_the_witness(
    bench: Any, sacct: Any, record: str, state: Observed, reason: Reason | None
) -> None:
    here = bench(sacct=sacct)
    here.writes(script.RECORD, record)
    seen = here.see()
    assert (seen.state, seen.reason) == (state, reason)


@pytest.mark.parametrize(
    ("row", "state", "reason"),
    [
        (accounting("COMPLETED"), Observed.COMPLETED, None),
        (accounting("FAILED", "3:0"), Observed.FAILED, Reason.WORKER_LOST),
        (accounting("TIMEOUT"), Observed.FAILED, Reason.TIME_LIMIT_EXCEEDED),
        (accounting("OUT_OF_MEMORY", "0:125"), Observed.FAILED, Reason.OUT_OF_MEMORY),
        (accounting("NODE_FAIL"), Observed.FAILED, Reason.NODE_FAILED),
        (accounting("PREEMPTED"), Observed.FAILED, Reason.PREEMPTED),
        (accounting("CANCELLED by 4000000"), Observed.CANCELLED, Reason.ADMIN_CANCELLED),
        (accounting("RUNNING"), Observed.GONE, None),  # it lags: it never decides that something lives
        (accounting("PENDING"), Observed.GONE, None),
        (accounting("NEW_STATE"), Observed.GONE, None),
        (accounting("COMPLETED").replace("o4s-", "x-"), Observed.GONE, None),  # a number that was used again
    ],
)
def test_accounting_says_how_a_job_ended_that_left_the_queue(
    bench: Any, row: str, state: Observed, reason: Reason | None
) -> None:
    seen = bench(sacct=row).see()
    assert (seen.state, seen.reason) == (state, reason)


@pytest.mark.parametrize("is_in_queue", [True, False])
@pytest.mark.parametrize(
    ("record", "state", "reason"),
    [
        ("0 4242", Observed.COMPLETED, None),
        ("137 4242", Observed.FAILED, Reason.OUT_OF_MEMORY),
        ("0 4241", Observed.FAILED, Reason.OUT_OF_MEMORY),  # another job's
        ("", Observed.FAILED, Reason.OUT_OF_MEMORY),
    ],
)
def test_a_job_that_went_on_when_its_kernel_had_no_memory_left_ended_well(
    bench: Any, is_in_queue: bool, record: str, state: Observed, reason: Reason | None
) -> None:
    """Slurm calls it out of memory to its end; its own record knows how that was."""
    made = bench(sacct=accounting("OUT_OF_MEMORY", "0:125"))
    if record:
        made.writes(script.RECORD, f"{record}\n")
    seen = made.see("OUT_OF_MEMORY" if is_in_queue else "")
    assert (seen.state, seen.reason) == (state, reason)
    assert "OUT_OF_MEMORY" in seen.backend_detail


def test_of_several_rows_the_newest_counts(bench: Any) -> None:
    assert bench(sacct=accounting("NODE_FAIL") + accounting("COMPLETED")).see().state is Observed.COMPLETED


# Over, and still in the queue.


def test_who_cancelled_is_asked_of_accounting(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 1001)
    assert bench(sacct=accounting("CANCELLED by 1001")).see("CANCELLED").reason is Reason.USER_CANCELLED


def test_another_account_s_cancel_is_the_administrator_s(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 1001)
    assert bench(sacct=accounting("CANCELLED by 0")).see("CANCELLED").reason is Reason.ADMIN_CANCELLED


def test_accounting_gets_a_little_time_to_learn_of_a_cancel(bench: Any) -> None:
    here = bench(sacct="")
    assert here.see("CANCELLED").state is Observed.ENDING
    here.now += 11
    seen = here.see("CANCELLED")
    assert (seen.state, seen.reason) == (Observed.CANCELLED, None)


def test_without_accounting_a_cancel_is_final_at_once(bench: Any) -> None:
    assert bench().see("CANCELLED").state is Observed.CANCELLED


def test_a_failure_without_a_record_is_asked_of_the_controller(bench: Any) -> None:
    here = bench(scontrol="JobId=4242 JobState=FAILED ExitCode=0:53")
    assert here.see("FAILED").reason is Reason.BOOTSTRAP_FAILED


def test_a_failure_is_explained_by_the_job_s_own_record_first(bench: Any) -> None:
    here = bench(scontrol="JobId=4242 ExitCode=1:0")
    here.writes(script.RECORD, "78 4242\n")
    seen = here.see("FAILED")
    assert (seen.reason, seen.exit_code) == (Reason.BOOTSTRAP_FAILED, 78)
    assert not [argv for argv in here.broker.asked if argv[0] == "scontrol"]


def test_a_state_that_nobody_knows_is_unknown_with_its_raw_text(bench: Any) -> None:
    seen = bench().see("QUANTUM")
    assert seen.state is Observed.UNKNOWN
    assert "QUANTUM" in seen.backend_detail


# Waiting.


def test_a_reason_that_can_never_clear_is_believed_only_after_a_while(bench: Any) -> None:
    here = bench()
    assert here.see("PENDING", "PartitionTimeLimit").state is Observed.PENDING
    here.now += judge_module._NEVER_AFTER_S - 1
    here.see("PENDING", "PartitionTimeLimit")
    assert here.cancelled == []
    here.now += 2
    assert here.see("PENDING", "PartitionTimeLimit").state is Observed.PENDING, "it is still there"
    assert here.cancelled == [4242]
    seen = here.see("CANCELLED")
    assert (seen.state, seen.reason) == (Observed.FAILED, Reason.UNSCHEDULABLE)
    assert seen.explanation == (
        "It could never start: the profile asks for more time than its machines are granted for. Choose less time, or "
        "another profile; else ask your administrator to shorten this one's."
    )
    assert "CANCELLED" in seen.backend_detail
    assert here.see().reason is Reason.UNSCHEDULABLE, "also when it has left the queue"


def test_a_reason_that_went_away_starts_anew(bench: Any) -> None:
    here = bench()
    here.see("PENDING", "BadConstraints")
    here.now += 15
    here.see("PENDING", "Priority")
    here.see("PENDING", "BadConstraints")
    here.now += 15
    here.see("PENDING", "BadConstraints")
    assert here.cancelled == []


@pytest.mark.parametrize(
    ("details", "asks", "is_given_up"),
    [
        ("MaxNodes=UNLIMITED TotalNodes=2", 3, True),
        ("MaxNodes=1 TotalNodes=2", 2, True),
        ("MaxNodes=UNLIMITED TotalNodes=2", 2, False),  # so that some of them must be out of service
        (Unreachable("Unable to contact slurm controller"), 9, False),
        ("", 9, False),
    ],
)
def test_too_many_machines_are_told_from_machines_that_are_down(
    bench: Any, details: Any, asks: int, is_given_up: bool
) -> None:
    here = bench(scontrol=details)
    for _ in range(5):
        seen = here.see("PENDING", "PartitionNodeLimit", asks_nodes=asks)
        here.now += judge_module._NEVER_AFTER_S
    assert seen.state is Observed.PENDING
    assert bool(here.cancelled) is is_given_up
    assert ("out of service" in seen.waiting) is not is_given_up


def test_what_nobody_asks_after_any_more_is_forgotten(bench: Any) -> None:
    here = bench(sacct="")
    here.see("CANCELLED")
    here.see("PENDING", "BadConstraints")
    assert (len(here.judge._ended_since), len(here.judge._never_since)) == (1, 1)
    here.now += 2 * 86400.0
    here.judge.judge({}, [], "")
    assert (len(here.judge._ended_since), len(here.judge._never_since)) == (0, 0)


MACHINES_OUT = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
MAY_CLEAR = ["ReqNodeNotAvail, UnavailableNodes:c1", "Priority", "JobHeldUser", "Dependency", MACHINES_OUT]
MAY_CLEAR += ["PartitionNodeLimit", "AssociationTimeLimit", "QOSTimeLimit", "JobHoldMaxRequeue"]


@pytest.mark.parametrize("reason", MAY_CLEAR)
def test_what_may_clear_is_left_alone_for_ever(bench: Any, reason: str) -> None:
    here = bench()
    for _ in range(5):
        here.now += 86400
        assert here.see("PENDING", reason).state is Observed.PENDING
    assert here.cancelled == []


def test_an_estimated_start_is_passed_on_when_it_lies_ahead(bench: Any) -> None:
    here = bench()
    assert here.see("PENDING", "Priority", starts_at=here.now + 600).estimated_start == here.now + 600
    assert here.see("PENDING", "Priority", starts_at=here.now - 600).estimated_start is None


def queue(state: str) -> str:
    return f"4242|{state}|{script.job_name(TOKEN)}|1|N/A|N/A||cpu|1|None\n"


def test_a_job_that_began_while_the_queue_s_answer_was_on_its_way_was_not_put_back(bench: Any) -> None:
    """A controller that hangs answers late; the job that waited then may have begun long ago."""
    here = bench(squeue=queue("RUNNING"))
    here.writes(script.STARTED, "4242 0\n")
    assert here.see("PENDING", "Priority").state is Observed.PENDING
    here.broker.answers["squeue"] = Unreachable("squeue: Connection refused")
    assert here.see("PENDING", "Priority").state is Observed.PENDING, "a guess ends nothing"
    assert here.cancelled == []


def test_a_job_that_was_put_back_into_the_queue_is_ended_and_explained(bench: Any) -> None:
    here = bench(squeue=queue("PENDING"))
    here.writes(script.STARTED, "4242 0\n")
    assert here.see("PENDING", "BeginTime").state is Observed.ENDING
    assert here.cancelled == [4242]
    seen = here.see("CANCELLED")
    assert (seen.state, seen.reason) == (Observed.FAILED, Reason.PREEMPTED)
    assert "put back into the queue" in seen.explanation


def test_a_job_that_runs_again_before_anybody_looked_is_explained_all_the_same(bench: Any) -> None:
    here = bench()
    here.writes(script.STARTED, "4242 0\n4242 1\n")
    here.writes(script.RECORD, "1 4242\n")
    seen = here.see("FAILED")
    assert (seen.state, seen.reason) == (Observed.FAILED, Reason.PREEMPTED)


def test_a_give_up_that_could_not_be_written_down_is_tried_again(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = bench(squeue=queue("PENDING"))
    here.writes(script.STARTED, "4242 0\n")

    def fails(token: str, why: str) -> None:
        raise CouldNotAsk("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(here.places, "give_up", fails)
        here.see("PENDING", "BeginTime")
        assert here.cancelled == []
    here.see("PENDING", "BeginTime")
    assert here.cancelled == [4242]
