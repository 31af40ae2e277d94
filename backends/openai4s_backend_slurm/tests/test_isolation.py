"""Isolation is proven where sessions will run, by a job; without such a proof there is no session."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openai4s_backend_slurm.backend import SlurmBackend
from openai4s_backend_slurm.lab import Cluster
from openai4s_backend_slurm.lab.shape import GPUS_EACH
from openai4s_provisioner.orchestration.ports import IsolationVerdict
from openai4s_provisioner.testing.backend_lab import BackendLab

THROUGH_THE_SCHEDULER = {"ask_the_scheduler", "signal_through_the_scheduler", "enter_an_allocation"}


def verdict_of(lab: BackendLab, private_network: bool = False, **changes: Any) -> IsolationVerdict:
    async def life() -> IsolationVerdict:
        backend = lab.open_backend()
        assert isinstance(backend, SlurmBackend)
        try:
            prover, profile = backend._proofs._prover, replace(lab.profile, **changes)
            digest = prover.configuration(profile, private_network)
            result = await prover.prove(digest, profile, private_network, lambda why: None)
            await prover.end(digest)
            return result.verdict
        finally:
            await backend.close()

    return asyncio.run(life())


@pytest.mark.parametrize("private_network", [False, True])
def test_every_attack_bites_on_the_node_and_none_from_inside(backend_lab: BackendLab, private_network: bool) -> None:
    verdict = verdict_of(backend_lab, private_network)
    assert ("connect_abstract_socket" in verdict.attacks) is private_network
    assert verdict.verified, verdict.sentence
    assert set(verdict.attacks) >= THROUGH_THE_SCHEDULER
    assert all(verdict.attacks.values())
    assert not backend_lab.exchange_dir.exists()
    assert not backend_lab.state_dir.exists()


def test_a_reachable_scheduler_is_found_out(backend_lab: BackendLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile that shares the folder of the client's key and configuration, and masks that do not know of it."""
    conf = str(backend_lab.options["slurm_conf"])
    lab_folder = conf.removesuffix("/conf/slurm.conf")
    monkeypatch.setattr("openai4s_backend_slurm.proof.masks", lambda options: ())
    verdict = verdict_of(backend_lab, share=(lab_folder,))
    assert not verdict.verified
    assert {name for name, stopped in verdict.attacks.items() if not stopped} == THROUGH_THE_SCHEDULER
    assert "ask the scheduler" in verdict.sentence


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"partition": "nope"}, "The job that checks it was refused. The profile names machines"),
        ({"python": "/no/such/python"}, "/no/such/python: No such file or directory\nTell your administrator"),
        ({"prologue": "export PATH=/nonexistent"}, "bubblewrap"),
    ],
)
def test_a_check_that_cannot_be_made_says_why(backend_lab: BackendLab, options: dict[str, str], told: str) -> None:
    verdict = verdict_of(backend_lab, backend_options={"partition": "cpu", **options})
    assert not verdict.verified
    assert told in verdict.sentence
    assert not backend_lab.exchange_dir.exists()


def test_what_a_killed_server_left_is_swept(backend_lab: BackendLab) -> None:
    forgotten = backend_lab.exchange_dir / "proof-0123456789ab"
    forgotten.mkdir(parents=True)
    young = backend_lab.exchange_dir / "proof-ba9876543210"
    young.mkdir()
    os.utime(forgotten, (1, 1))
    assert verdict_of(backend_lab).verified
    assert not forgotten.exists()
    assert young.exists()


def test_a_check_whose_fate_was_open_is_found_again(backend_lab: BackendLab, cluster: Cluster, tmp_path: Path) -> None:
    """The submission says that it timed out, and has landed all the same."""
    wrapper = tmp_path / "sbatch"
    wrapper.write_text(
        "#!/bin/sh\n/usr/bin/sbatch \"$@\" >/dev/null\necho 'Socket timed out on send/recv' >&2\nexit 1\n"
    )
    wrapper.chmod(0o700)
    options = {**backend_lab.options, "commands": {"sbatch": str(wrapper)}}
    assert verdict_of(replace(backend_lab, options=options)).verified
    names = cluster.run(["squeue", "-h", "-t", "all", "-o", "%A %j"]).stdout.splitlines()
    assert len([line for line in names if int(line.split()[0]) > cluster.swept_up_to]) == 1


def proofs_in(cluster: Cluster) -> list[dict[str, str]]:
    return [job for job in cluster.admin.jobs(are_over=True) if int(job["id"]) > cluster.swept_up_to]


async def asked(lab: BackendLab, patience_s: float = 60.0) -> IsolationVerdict:
    """By a process that asks, waits for so long, and ends."""
    backend = lab.open_backend()
    assert isinstance(backend, SlurmBackend)
    backend._proofs._patience_s = patience_s
    try:
        return await backend.isolates_session_credentials(lab.profile)
    finally:
        await backend.close()


async def gives_up(lab: BackendLab) -> None:
    verdict = await asked(lab, patience_s=1.5)
    assert not verdict.verified
    assert "It goes on" in verdict.sentence


def test_a_check_that_must_queue_outlives_those_who_ask_for_it(backend_lab: BackendLab, cluster: Cluster) -> None:
    """One after the other asks, gives up and ends; the job keeps its place, and the last one finds it done."""
    lab = replace(
        backend_lab, profile=replace(backend_lab.profile, backend_options={"partition": "cpu", "nodelist": "c1"})
    )
    important = cluster.admin.occupy("c1")
    cluster.count_from_here()

    async def life() -> None:
        await gives_up(lab)
        await gives_up(lab)
        (job,) = proofs_in(cluster)
        assert job["state"] == "PENDING"
        cluster.admin.cancel(important)
        cluster.wait(lambda: proofs_in(cluster)[0]["state"] == "COMPLETED", "the check to end, though nobody waits")
        verdict = await asked(lab)
        assert verdict.verified, verdict.sentence

    asyncio.run(life())
    assert len(proofs_in(cluster)) == 1
    assert not lab.exchange_dir.exists()
    assert [path.name for path in (lab.state_dir / "slurm").iterdir()] == ["isolation"]


def test_those_who_ask_in_several_processes_share_one_check(backend_lab: BackendLab, cluster: Cluster) -> None:
    cluster.count_from_here()

    async def life() -> None:
        verdicts = await asyncio.gather(*(asked(backend_lab) for _ in range(4)))
        assert all(verdict.verified for verdict in verdicts), verdicts

    asyncio.run(life())
    assert len(proofs_in(cluster)) == 1
    assert not list(backend_lab.exchange_dir.glob("*"))


def test_what_nobody_comes_back_for_is_ended(
    backend_lab: BackendLab, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of a profile that is no more, still queued when another one is asked for much later."""
    gone = replace(backend_lab.profile, backend_options={"partition": "cpu", "nodelist": "c1", "exclusive": True})
    cluster.admin.occupy("c1")
    cluster.count_from_here()
    asyncio.run(gives_up(replace(backend_lab, profile=gone)))
    monkeypatch.setattr("openai4s_backend_slurm.proof._TICKET_HOLDS_S", 0.0)
    assert verdict_of(backend_lab).verified
    assert sorted(job["state"] for job in proofs_in(cluster)) == ["CANCELLED", "COMPLETED"]
    assert not backend_lab.exchange_dir.exists()


def test_a_submission_that_never_landed_is_made_again_once_that_is_certain(
    backend_lab: BackendLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openai4s_backend_slurm.proof._FATE_SHOWS_S", 1.0)
    wrapper = tmp_path / "sbatch"
    answers = tmp_path / "answers"
    unheard = "echo 'Socket timed out on send/recv' >&2; exit 1"
    wrapper.write_text(f'#!/bin/sh\n[ -e {answers} ] || {{ {unheard}; }}\nexec /usr/bin/sbatch "$@"\n')
    wrapper.chmod(0o700)
    backend_lab = replace(backend_lab, options={**backend_lab.options, "commands": {"sbatch": str(wrapper)}})
    assert "may not have arrived" in asyncio.run(asked(backend_lab)).sentence
    answers.touch()
    assert "may not have arrived" in asyncio.run(asked(backend_lab)).sentence, "nothing is sent while that is open"
    monkeypatch.setattr("openai4s_backend_slurm.proof._FATE_IS_SETTLED_S", 0.0)
    assert "may not have arrived" in asyncio.run(asked(backend_lab)).sentence
    assert asyncio.run(asked(backend_lab)).verified
    assert not backend_lab.exchange_dir.exists()


# -- what others queue for ---------------------------------------------------------------------------------------------

ON_A_GPU: dict[str, Any] = {"gpus": 1, "backend_options": {"partition": "gpu", "gpu_type": "a100"}}
NO_SMALL_JOBS = """#!/bin/sh
echo "$*" >>{log}
case "$*" in *--gres=gpu:a100:1*) exec /usr/bin/sbatch "$@" ;; esac
echo 'sbatch: error: {complaint}' >&2
exit 1
"""


def site_with(lab: BackendLab, tmp_path: Path, complaint: str, gres: str = "gpu:a100:1") -> tuple[BackendLab, Path]:
    """A site where only a job that asks for `gres` is taken, and what was sent to it."""
    wrapper, log = tmp_path / "sbatch", tmp_path / "sent"
    wrapper.write_text(NO_SMALL_JOBS.format(log=log, complaint=complaint).replace("gpu:a100:1", gres))
    wrapper.chmod(0o755)
    return replace(lab, options={**lab.options, "commands": {"sbatch": str(wrapper)}}), log


def test_a_check_does_not_queue_for_devices_that_others_have(backend_lab: BackendLab, cluster: Cluster) -> None:
    for node in ("g1", "g2"):
        command = ["sbatch", "--parsable", "-p", "gpu", "-w", node, "-c", "1", "--mem=10", f"--gres=gpu:{GPUS_EACH}"]
        cluster.admin.command(*command, "--output=/dev/null", "--wrap=sleep 3600")
    cluster.wait(lambda: [job["state"] for job in cluster.admin.jobs()] == ["RUNNING"] * 2, "every device to be taken")
    assert verdict_of(backend_lab, **ON_A_GPU).verified


def test_a_partition_that_takes_no_job_without_devices_is_asked_with_them_and_remembered(
    backend_lab: BackendLab, tmp_path: Path
) -> None:
    site, sent = site_with(backend_lab, tmp_path, "Batch job submission failed: Job violates accounting/QOS policy")
    assert verdict_of(site, **ON_A_GPU).verified
    assert ["--gres" in line for line in sent.read_text().splitlines()] == [False, True]
    sent.unlink()
    assert verdict_of(site, **ON_A_GPU).verified, "by another process, too"
    assert ["--gres" in line for line in sent.read_text().splitlines()] == [True]


def test_a_check_that_is_refused_with_devices_too_says_so_and_remembers_nothing(
    backend_lab: BackendLab, tmp_path: Path
) -> None:
    site, sent = site_with(backend_lab, tmp_path, "Invalid account or account/partition combination", gres="tpu:1")
    verdict = verdict_of(site, **ON_A_GPU)
    assert not verdict.verified
    assert "You may not submit under this account" in verdict.sentence
    assert len(sent.read_text().splitlines()) == 2
    assert not site.state_dir.exists()
    assert not site.exchange_dir.exists()


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (
            "squeue",
            "The job that checks it was not sent: the cluster's queue could not be asked: the command /no/squeue",
        ),
        ("sbatch", "The cluster's commands cannot be used here: the command /no/sbatch is not on this machine"),
    ],
)
def test_a_command_that_is_missing_is_named_at_once(backend_lab: BackendLab, command: str, told: str) -> None:
    options = {**backend_lab.options, "commands": {command: f"/no/{command}"}}
    verdict = verdict_of(replace(backend_lab, options=options))
    assert not verdict.verified
    assert told in verdict.sentence
    assert "administrator" in verdict.sentence
