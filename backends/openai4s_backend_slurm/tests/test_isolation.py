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
            return await backend._proofs._prover.prove(
                replace(lab.profile, **changes), private_network, lambda why: None
            )
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
        ({"partition": "nope"}, "The job that checks it was refused. The profile names a partition"),
        ({"python": "/no/such/python"}, "ended without a result"),
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
