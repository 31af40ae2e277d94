"""What everybody reads holds no word of the scheduler: those stand in the detail, which is shown as it came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openai4s_backend_slurm import states, wording
from openai4s_backend_slurm.broker import Answer, Broker, BrokerError, Denied, TimedOut
from openai4s_backend_slurm.extension import extend
from openai4s_backend_slurm.lab import Cluster
from openai4s_backend_slurm.lookup import Lookup
from openai4s_backend_slurm.parse import JobName
from openai4s_backend_slurm.places import Places
from openai4s_backend_slurm.script import job_name
from openai4s_provisioner.orchestration.errors import CouldNotAsk, Refused
from openai4s_provisioner.orchestration.models import ResourceProfile
from openai4s_provisioner.orchestration.ports import Rejected

from .clocks import A_WHILE_S, CLOCKS
from .fake_site import fake_site
from .people import Person
from .replay import recordings
from .session_jobs import ONE_NODE, only_job
from .test_wrappers import submit

VOCABULARY = Path(states.__file__).with_name("vocabulary.txt").read_text(encoding="utf-8").splitlines()
WORDS = [line.lower() for line in VOCABULARY if line and not line.startswith("#")]
REFUSED = sorted(
    {
        each["stderr"].strip()
        for each in recordings().values()
        if each["rc"] and "sbatch: error" in each["stderr"] and wording.complaint_of(each["stderr"]).name == "REFUSED"
    }
)


def in_words_of(text: str) -> list[str]:
    return [word for word in WORDS if word in text.lower()]


def test_there_are_refusals_to_look_at() -> None:
    assert len(REFUSED) > 5


@pytest.mark.parametrize("complaint", [*REFUSED, "sbatch: unrecognized option '--gres=gpu:1'"])
def test_a_refused_submission_is_told_in_our_words_and_kept_in_the_scheduler_s(tmp_path: Path, complaint: str) -> None:
    site = fake_site(tmp_path, sbatch=f"sys.exit({complaint!r})")
    answer = submit(site)
    assert isinstance(answer, Rejected)
    assert in_words_of(answer.sentence) == []
    assert complaint.splitlines()[-1] in answer.backend_detail


@pytest.mark.parametrize("said", ["no partition specified", "Invalid qos specification", "some gres words", "slurm!"])
def test_so_is_what_no_recording_has(said: str) -> None:
    assert in_words_of(wording.refusal_of(said)[1] + wording.remedy_of(said)) == []


class BrokerWithOneRunningJob(Broker):
    """Its queue has it; whatever is to be changed about it fails in one way."""

    def __init__(self, error: BrokerError) -> None:
        super().__init__(5.0)
        self._error = error

    def run(self, argv: Any, keep_fds: Any = ()) -> Answer:
        if argv[0] == "scontrol":
            raise self._error
        return Answer(f"17|RUNNING|{job_name('abc')}|1|1000|2000|c1|cpu|1|None\n", "")


def test_an_extension_that_is_refused_is_told_in_our_words(tmp_path: Path) -> None:
    profile = ResourceProfile("one", "slurm", max_walltime_s=36000)
    said = "scontrol: error: Access/permission denied for job 17"
    broker = BrokerWithOneRunningJob(Denied(said, "", said))
    with pytest.raises(Refused) as caught:
        extend(broker, Lookup(broker, Places(tmp_path), ""), JobName(17), "abc", profile, 600)
    assert in_words_of(str(caught.value)) == []
    silent = BrokerWithOneRunningJob(TimedOut("scontrol did not answer"))
    with pytest.raises(CouldNotAsk):
        extend(silent, Lookup(silent, Places(tmp_path), ""), JobName(17), "abc", profile, 600)


def told(session: dict[str, Any]) -> list[str]:
    """Every text of what the REST interface says of a session, but for its detail, which is the scheduler's own."""

    def texts(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [text for each in value.values() for text in texts(each)]
        if isinstance(value, list):
            return [text for each in value for text in texts(each)]
        return [value] if isinstance(value, str) else []

    return texts({key: value for key, value in session.items() if key != "detail"})


@pytest.mark.timeout(600)
def test_what_the_interface_says_of_a_real_session_is_in_our_words_from_the_queue_to_its_end(
    ordinary_user: Any, cluster: Cluster, wait_until: Any
) -> None:
    clocks: dict[str, Any] = dict(CLOCKS)
    with Person(ordinary_user, cluster, f"{ONE_NODE}\nwalltime_s = 600\nmax_walltime_s = 7200", **clocks) as person:
        assert person.ask("prove") == ""
        cluster.count_from_here()
        important = cluster.admin.occupy("c1")
        start = person.begin("start")
        person.heard(lambda event: "waits for machines" in event["sentence"], "why it waits", A_WHILE_S)
        shown = person.ask("shown")
        cluster.admin.cancel(important)
        person.answer(start)
        person.ask("connect")
        shown += person.ask("shown")
        wait_until(lambda: person.ask("ends_at"), "the end to be known", A_WHILE_S)
        process = person.terminal("extend", person.ask("kernel_id"), "--by", "10m")
        refused = process.communicate(timeout=60)[1]
        assert "lets only its operators extend" in refused
        cluster.admin.cancel(only_job(cluster))
        person.ended("ADMIN_CANCELLED", A_WHILE_S)
        shown += person.ask("shown")
        assert [each["state"] for each in shown] == ["starting", "ready", "ended"]
        assert any("job" in each["detail"] for each in shown), "the scheduler's own text is there, in its place"
        for text in [refused, *(text for each in shown for text in told(each))]:
            assert in_words_of(text) == [], text
