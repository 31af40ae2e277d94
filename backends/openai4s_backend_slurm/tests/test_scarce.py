"""What a proof does not ask for, and where it must: remembered for a place, whatever the profile is called."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from openai4s_backend_slurm.profiles import SlurmOptions
from openai4s_backend_slurm.proof import JobProver
from openai4s_backend_slurm.scarce import RefusingPlaces, place_of, without_scarce
from openai4s_provisioner.orchestration.models import ExternalHandle, ResourceProfile
from openai4s_provisioner.orchestration.ports import (
    AllocationRequest,
    Created,
    IsolationVerdict,
    Observation,
    Observed,
    SubmitResult,
)
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.testing.faulty_backends import ManualClock, ObedientBackend
from openai4s_provisioner.worker.proof import VERDICT

SMALL = {"partition": "gpu", "constraint": "a100", "modules": ["cuda"]}
PROFILE = ResourceProfile(
    "gpu",
    "slurm",
    gpus=2,
    backend_options={**SMALL, "gpu_type": "a100", "gres": "shard:1", "licenses": "matlab:1", "exclusive": True},
)


def test_it_asks_for_nothing_that_others_queue_for_and_goes_to_the_same_machines() -> None:
    assert without_scarce(PROFILE) == replace(PROFILE, gpus=0, backend_options=SMALL)
    plain = ResourceProfile("cpu", "slurm", backend_options={"partition": "cpu"})
    assert without_scarce(plain) == plain


def test_a_place_is_where_jobs_go_and_nothing_else() -> None:
    other_name = replace(PROFILE, name="two", gpus=4, cpus=8)
    assert place_of(other_name) == place_of(PROFILE)
    assert place_of(replace(PROFILE, backend_options={**SMALL, "partition": "cpu"})) != place_of(PROFILE)


class BackendWhereJobsWithoutDevicesNeverStart(ObedientBackend):
    """It takes them, and gives them up; a job with devices proves what it was sent for."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.asked: list[int] = []

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        self.asked.append(request.profile.gpus)
        if request.profile.gpus:
            found = {"version": 1, "verified": True, "sentence": "", "host": "g1", "attacks": {}}
            (request.attempt_dir / VERDICT).write_text(json.dumps(found))
        return Created(ExternalHandle("slurm", f"{len(self.asked)}/{request.profile.gpus}"))

    async def observe(self, handles: Sequence[ExternalHandle]) -> Mapping[ExternalHandle, Observation]:
        never = Observation(Observed.FAILED, Reason.UNSCHEDULABLE, explanation="It asks for too little.")
        return {each: never if each.value.endswith("/0") else Observation(Observed.COMPLETED) for each in handles}


async def proven(prover: JobProver) -> IsolationVerdict:
    result = await prover.prove("digest", PROFILE, False, lambda why: None)
    await prover.end("digest")
    return result.verdict


def test_a_small_job_that_could_never_start_is_followed_by_one_as_the_profile_asks(tmp_path: Path) -> None:
    backend = BackendWhereJobsWithoutDevicesNeverStart()
    folders = (tmp_path / "state", tmp_path / "exchange")
    for expected in ([0, 2], [0, 2, 2]):
        prover = JobProver(backend, lambda token: None, *folders, SlurmOptions())
        verdict = asyncio.run(proven(prover))
        assert verdict.verified, verdict.sentence
        assert backend.asked == expected, "the second one knows"
    assert not folders[1].exists()


def test_what_was_learnt_outlives_the_process_and_is_bounded(tmp_path: Path) -> None:
    record = tmp_path / "state" / "slurm" / "refuse"
    for number in range(100):
        RefusingPlaces(record).learn(f"place-{number}")
    assert RefusingPlaces(record).know("place-99")
    assert not RefusingPlaces(record).know("place-0")
    assert record.stat().st_size < 1 << 12
    assert record.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["", "{", "[]", '{"places": 3}', "\0"])
def test_a_record_that_cannot_be_read_says_nothing(tmp_path: Path, content: str) -> None:
    record = tmp_path / "refuse"
    record.write_text(content)
    record.chmod(0o600)
    assert not RefusingPlaces(record).know("place")
