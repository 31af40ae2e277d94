"""What everybody reads holds no word of the scheduler: those stand in the detail, which is shown as it came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openai4s_backend_slurm import states, wording
from openai4s_backend_slurm.broker import Answer, Broker, BrokerError, Denied, TimedOut
from openai4s_backend_slurm.extension import extend
from openai4s_backend_slurm.lookup import Lookup
from openai4s_backend_slurm.parse import JobName
from openai4s_backend_slurm.places import Places
from openai4s_backend_slurm.script import job_name
from openai4s_provisioner.orchestration.errors import CouldNotAsk, Refused
from openai4s_provisioner.orchestration.models import ResourceProfile
from openai4s_provisioner.orchestration.ports import Rejected

from .fake_site import fake_site
from .replay import recordings
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
