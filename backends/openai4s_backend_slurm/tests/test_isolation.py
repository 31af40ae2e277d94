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
