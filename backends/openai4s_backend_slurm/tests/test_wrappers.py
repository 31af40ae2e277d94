"""Sites whose submission command is a wrapper, or whose controller answers late or not at all: always one job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from openai4s_backend_slurm.broker import Answer, Broker, NotStarted
from openai4s_provisioner.orchestration.errors import CouldNotAsk
from openai4s_provisioner.orchestration.models import ExternalHandle, ResourceProfile
from openai4s_provisioner.orchestration.ports import (
    AllocationRequest,
    Created,
    Existing,
    Observed,
    Rejected,
    SubmitResult,
    Unknown,
)
from openai4s_provisioner.orchestration.reasons import Reason

from .fake_site import SBATCH, SQUEUE, FakeSite, fake_site

TOKEN = "4b1d" * 12
Site = Callable[..., FakeSite]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return lambda **commands: fake_site(tmp_path, **commands)


def request(site: FakeSite, **options: Any) -> AllocationRequest:
    attempt = site.base / "attempt"
    attempt.mkdir(exist_ok=True)
    profile = ResourceProfile("one", "slurm", backend_options=options)
    return AllocationRequest(TOKEN, "allocation", "workload", profile, ("worker.pyz", "worker", str(attempt)), attempt)


def submit(site: FakeSite, **options: Any) -> SubmitResult:
    async def life() -> SubmitResult:
        with site.backend() as backend:
            answer = await backend.submit(request(site, **options))
            await backend.close()
            return answer

    return asyncio.run(life())


def handle(text: str) -> ExternalHandle:
    return ExternalHandle("slurm", f"{text}/{TOKEN}")


@pytest.mark.parametrize(
    ("body", "number"),
    [
        ("print(enqueue())", "4242"),
        ("print('*** maintenance on 12 May ***'); print(enqueue())", "4242"),
        ("print(f'Submitted batch job {enqueue()}')", "4242"),
        ("print(f'Submitted batch job {enqueue()} on cluster nautilus')", "4242@nautilus"),
        ("print(f'{enqueue()};west')", "4242@west"),
        ("print('banner', file=sys.stderr); print(enqueue())", "4242"),
        ("enqueue(); print('thank you')", "4242"),  # prints no number at all: found by its token
        ("enqueue(); print('thank you'); sys.exit('sbatch: error: Invalid feature specification')", "4242"),
    ],
)
def test_whatever_a_wrapper_prints_its_one_job_is_known(site: Site, body: str, number: str) -> None:
    here = site(sbatch=body)
    assert submit(here) == Created(handle(number))
    assert len(here.queue) == 1


NO_SHORT_FORM = (
    "if '--parsable' in argv: sys.exit(\"sbatch: unrecognized option '--parsable'\")\n"
    "print(f'Submitted batch job {enqueue()}')"
)


def test_a_wrapper_without_the_short_form_gets_the_plain_one_once(site: Site) -> None:
    here = site(sbatch=NO_SHORT_FORM)
    assert submit(here) == Created(handle("4242"))
    assert len(here.queue) == 1
    assert len(here.calls("sbatch")) == 2


def test_it_is_not_sent_again_when_the_complaint_came_after_the_landing(site: Site) -> None:
    here = site(sbatch="enqueue(); sys.exit(\"unrecognized option '--parsable'\")")
    assert submit(here) == Created(handle("4242"))
    assert len(here.queue) == 1
    assert len(here.calls("sbatch")) == 1


def test_the_short_form_may_be_removed_for_good(site: Site) -> None:
    here = site(sbatch=NO_SHORT_FORM)
    assert submit(here, remove_options=["--parsable"]) == Created(handle("4242"))
    assert len(here.calls("sbatch")) == 1


def test_an_option_that_the_site_forbids_is_named_with_the_remedy(site: Site) -> None:
    here = site(sbatch="sys.exit(\"sbatch: unrecognized option '--comment=openai4s:x'\")")
    answer = submit(here)
    assert isinstance(answer, Rejected)
    assert answer.reason is Reason.INVALID_SPEC
    assert "Add --comment to remove_options of the profile" in answer.sentence
    assert len(here.calls("sbatch")) == 1


TIMED_OUT = "sys.exit('sbatch: error: Batch job submission failed: Socket timed out on send/recv operation')"


def test_a_job_that_landed_in_spite_of_a_time_out_is_found_and_not_sent_again(site: Site) -> None:
    here = site(sbatch=f"enqueue(); {TIMED_OUT}")
    assert isinstance(submit(here), Unknown)
    assert submit(here) == Existing(handle("4242"))
    assert len(here.queue) == 1


@pytest.mark.parametrize(
    "complaint",
    [
        "Batch job submission failed: Socket timed out on send/recv operation",
        "Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "Batch job submission failed: Protocol authentication error",
        "Batch job submission failed: Unable to create job record, try again",
        "Batch job submission failed: Zero Bytes were transmitted or received",
        'Munge encode failed: Failed to access \\"/run/munge/munge.socket.2\\"',
        "Segmentation fault",
        "the wrapper's own words",
        "",
    ],
)
def test_what_is_not_a_definite_no_stays_open(site: Site, complaint: str) -> None:
    here = site(sbatch=f'sys.exit("sbatch: error: {complaint}")')
    answer = submit(here)
    assert isinstance(answer, Unknown)
    assert answer.token == TOKEN


@pytest.mark.parametrize(
    ("complaint", "reason", "words"),
    [
        ("Invalid partition name specified", Reason.INVALID_SPEC, "names machines that this cluster does not have"),
        ("Invalid qos specification", Reason.INVALID_SPEC, "terms of service that you may not use"),
        ("Invalid account or account/partition combination specified", Reason.AUTHORIZATION_DENIED, "account"),
        ("Requested node configuration is not available", Reason.UNSCHEDULABLE, "No machine of this cluster"),
        ("More processors requested than permitted", Reason.UNSCHEDULABLE, "No machine of this cluster"),
        ("Invalid feature specification", Reason.INVALID_SPEC, "a feature that no machine here has"),
        ("Requested reservation is invalid", Reason.INVALID_SPEC, "reservation"),
        (
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            Reason.QUOTA_EXCEEDED,
            "limits",
        ),
        ("Access/permission denied", Reason.AUTHORIZATION_DENIED, "You may not submit this job here"),
        ("Unspecified error", Reason.BACKEND_REJECTED, "The cluster refused the job"),
    ],
)
def test_a_definite_no_has_its_reason_and_what_was_said(site: Site, complaint: str, reason: Reason, words: str) -> None:
    here = site(sbatch=f'sys.exit("sbatch: error: Batch job submission failed: {complaint}")')
    answer = submit(here)
    assert isinstance(answer, Rejected)
    assert answer.reason is reason
    assert words in answer.sentence
    assert complaint in answer.backend_detail


def test_a_no_counts_only_when_the_queue_says_so_too(site: Site) -> None:
    no = "sys.exit('sbatch: error: Batch job submission failed: Invalid qos specification')"
    here = site(sbatch=no, squeue=f"if seen('squeue') > 1: sys.exit('Socket timed out')\n{SQUEUE}")
    assert isinstance(submit(here), Unknown)


def test_a_job_that_a_refusal_used_up_is_not_taken_for_a_landing(site: Site) -> None:
    """Some refusals leave a failed job behind."""
    no = "sys.exit('sbatch: error: Batch job submission failed: Requested node configuration is not available')"
    assert isinstance(submit(site(sbatch=f"enqueue('FAILED'); {no}")), Rejected)


def test_a_command_that_is_not_there_is_a_refusal(site: Site) -> None:
    here = site()
    (here.base / "bin" / "sbatch").unlink()
    answer = submit(here)
    assert isinstance(answer, Rejected)
    assert answer.reason is Reason.BACKEND_UNAVAILABLE


def test_a_machine_that_can_start_no_command_now_has_sent_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Broker.run

    def run(self: Broker, argv: Sequence[str], keep_fds: Sequence[int] = ()) -> Answer:
        if argv[0] == "sbatch":
            raise NotStarted("sbatch cannot be run: Cannot allocate memory")
        return ask(self, argv, keep_fds)

    monkeypatch.setattr(Broker, "run", run)
    answer = submit(site())
    assert isinstance(answer, Unknown)
    assert not answer.was_sent


def test_a_hung_submission_is_ended_at_its_deadline_and_left_open(site: Site) -> None:
    here = site(sbatch="time.sleep(60)")
    here.options["deadline_s"] = 1.0
    answer = submit(here)
    assert isinstance(answer, Unknown)
    assert "did not answer within 1 s" in answer.backend_detail


def test_nothing_is_sent_while_it_cannot_be_asked_whether_it_landed(site: Site) -> None:
    here = site(squeue="sys.exit('slurm_load_jobs error: Socket timed out on send/recv operation')")
    assert isinstance(submit(here), Unknown)
    assert here.calls("sbatch") == []


# The cluster's name.


def test_a_named_cluster_is_named_in_every_question(site: Site) -> None:
    here = site(
        sbatch="print(f'{enqueue()};west') if '--clusters=west' in argv else sys.exit('wrong cluster')",
        squeue=f"if '--clusters=west' not in argv: sys.exit()\n{SQUEUE}",
    )
    here.options["cluster"] = "west"
    created = submit(here)
    assert created == Created(handle("4242@west"))

    async def life() -> None:
        with here.backend() as backend:
            assert await backend.find_by_token(TOKEN) == handle("4242@west")
            assert (await backend.observe([handle("4242@west")]))[handle("4242@west")].state is Observed.PENDING
            await backend.cancel(handle("4242@west"))
            await backend.close()

    asyncio.run(life())
    for name in ("sbatch", "squeue", "scancel"):
        assert all("--clusters=west" in call for call in here.calls(name)), name


def test_no_cluster_is_named_where_none_is_known(site: Site) -> None:
    here = site()
    submit(here)
    for name in ("sbatch", "squeue"):
        assert not any(word.startswith(("--clusters", "-M")) for call in here.calls(name) for word in call)


# Asking.


@pytest.mark.parametrize(
    "squeue",
    ["", "print('Welcome!')", r"os.write(1, b'\xff\x00|garbage\n' * 99)", "print('a' * 10_000_000)"],
    ids=["nothing", "a banner alone", "garbage", "very much"],
)
def test_an_answer_that_is_no_list_of_jobs_says_of_none_that_it_is_gone(site: Site, squeue: str) -> None:
    """A wrapper may swallow the answer and end well. Taken for an empty queue, it would end every session."""
    here = site(squeue=squeue)

    async def life() -> None:
        with here.backend() as backend:
            seen = (await backend.observe([handle("4242")]))[handle("4242")]
            assert seen.state is Observed.UNKNOWN
            assert "printed no list of jobs" in seen.backend_detail
            with pytest.raises(CouldNotAsk):
                await backend.find_by_token(TOKEN)
            await backend.close()

    asyncio.run(life())
    assert isinstance(submit(here), Unknown)
    assert here.calls("sbatch") == []


def test_an_empty_queue_behind_a_banner_is_an_answer(site: Site) -> None:
    here = site(squeue=f"print('Welcome!')\n{SQUEUE}")

    async def life() -> None:
        with here.backend() as backend:
            assert (await backend.observe([handle("4242")]))[handle("4242")].state is Observed.GONE
            assert await backend.find_by_token(TOKEN) is None
            await backend.close()

    asyncio.run(life())


@pytest.mark.parametrize(
    "complaint",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "slurm_load_jobs error: Protocol authentication error",
        "error: Munge encode failed: Failed to access socket",
        "slurm_load_jobs error: Invalid job id specified",
        "anything else",
    ],
)
def test_a_question_that_fails_ends_nothing(site: Site, complaint: str) -> None:
    here = site(squeue=f'sys.exit("{complaint}")')

    async def life() -> None:
        with here.backend() as backend:
            seen = (await backend.observe([handle("4242")]))[handle("4242")]
            assert seen.state is Observed.UNKNOWN
            with pytest.raises(CouldNotAsk):
                await backend.find_by_token(TOKEN)
            await backend.close()

    asyncio.run(life())


def test_a_cancel_that_may_not_have_arrived_is_said_to_be_open(site: Site) -> None:
    here = site(scancel="sys.exit('scancel: error: Kill job error on job id 4242: Socket timed out on send/recv')")

    async def life() -> None:
        with here.backend() as backend:
            with pytest.raises(CouldNotAsk, match="could not be asked to end"):
                await backend.cancel(handle("4242"))
            await backend.close()

    asyncio.run(life())


def test_a_number_that_is_somebody_else_s_by_now_is_not_believed(site: Site) -> None:
    here = site(sbatch=SBATCH)
    submit(here)
    (here.base / "queue").write_text("4242|COMPLETED|another|1|2|3|c1|cpu|1|None\n")

    async def life() -> None:
        with here.backend() as backend:
            assert (await backend.observe([handle("4242")]))[handle("4242")].state is Observed.GONE
            await backend.close()

    asyncio.run(life())
    assert f"--name=o4s-{TOKEN}" not in str(here.calls("scancel"))


def test_one_question_for_all_and_one_more_for_those_who_came_meanwhile(site: Site) -> None:
    here = site(squeue=f"time.sleep(0.3)\n{SQUEUE}")
    (here.base / "queue").write_text("4242|RUNNING|o4s-" + TOKEN + "|1|2|3|c1|cpu|1|None\n")

    async def life() -> None:
        with here.backend() as backend:
            first = asyncio.create_task(backend.observe([handle("4242")]))
            await asyncio.sleep(0.1)
            rest = [asyncio.create_task(backend.observe([handle("4242")])) for _ in range(50)]
            for answer in await asyncio.gather(first, *rest):
                assert answer[handle("4242")].state is Observed.RUNNING
            await backend.close()

    asyncio.run(life())
    assert len(here.calls("squeue")) == 2
