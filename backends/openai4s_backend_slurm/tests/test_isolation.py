"""Isolation is proven where sessions will run, by a job; without such a proof there is no session."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from openai4s_backend_slurm.backend import SlurmBackend
from openai4s_provisioner.orchestration.ports import IsolationVerdict
from openai4s_provisioner.testing.backend_lab import BackendLab

THROUGH_THE_SCHEDULER = {"ask_the_scheduler", "signal_through_the_scheduler", "enter_an_allocation"}


def verdict_of(lab: BackendLab, **changes: Any) -> IsolationVerdict:
    async def life() -> IsolationVerdict:
        backend = lab.open_backend()
        assert isinstance(backend, SlurmBackend)
        try:
            return await backend._proofs._prover.prove(replace(lab.profile, **changes), False, lambda why: None)
        finally:
            await backend.close()

    return asyncio.run(life())


def test_every_attack_bites_on_the_node_and_none_from_inside(backend_lab: BackendLab) -> None:
    verdict = verdict_of(backend_lab)
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
