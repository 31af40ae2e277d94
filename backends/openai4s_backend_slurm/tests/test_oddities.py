"""Sites with odd habits and folders with odd names, on real daemons."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openai4s_backend_slurm.backend import SlurmBackend
from openai4s_backend_slurm.lab import Cluster
from openai4s_provisioner.orchestration.ports import Observed
from openai4s_provisioner.testing.backend_lab import BackendLab

ODD = ["a b", "100%j", "%", "it's", '"', "$HOME", "`id`", "é漢", "-x", "back\\slash", "new\nline", "*", "(kd)=-1;&"]


def runs(lab: BackendLab, processes: int = 1, **options: Any) -> None:
    """A program that starts on every node, and ends well."""
    nodes = options.pop("nodes", 1)
    profile = replace(lab.profile, nodes=nodes, backend_options={"partition": "all", **options})

    async def life() -> None:
        backend = lab.open_backend()
        request = lab.request(profile=profile)
        try:
            handle = await lab.submitted(backend, request, processes=processes)
            lab.let_exit(request)
            over = await lab.ended(backend, handle)
            assert over.state is Observed.COMPLETED, (over, await backend.diagnostics(handle))
        finally:
            await backend.close()

    asyncio.run(life())


@pytest.mark.parametrize("name", ODD)
def test_a_folder_may_have_any_name(backend_lab: BackendLab, tmp_path: Path, name: str) -> None:
    runs(replace(backend_lab, exchange_dir=tmp_path / name))


def test_a_site_that_passes_no_environment_on_can_have_several_nodes(backend_lab: BackendLab) -> None:
    """Where nothing is exported, a step would find no PATH."""
    runs(backend_lab, processes=2, nodes=2, sbatch_options=["--export=NONE"])


def test_a_cluster_that_falls_silent_is_said_once_and_ends_nothing(
    backend_lab: BackendLab, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    hasty = replace(
        backend_lab, options={**backend_lab.options, "slurm_conf": str(cluster.layout.hasty_conf), "deadline_s": 4}
    )
    caplog.set_level(logging.WARNING, "openai4s_backend_slurm.backend")

    async def life() -> None:
        backend = hasty.open_backend()
        assert isinstance(backend, SlurmBackend)
        request = hasty.request()
        handle = await hasty.submitted(backend, request)
        with cluster.controller.hung():
            for _ in range(2):
                assert (await backend.observe([handle]))[handle].state is Observed.UNKNOWN
        await hasty.until(lambda: _runs(backend, handle), "the cluster to answer again")
        assert hasty.alive(request)
        await backend.cancel(handle)
        await hasty.ended(backend, handle)
        await backend.close()

    asyncio.run(life())
    said = [record.getMessage() for record in caplog.records if record.name == "openai4s_backend_slurm.backend"]
    assert len(said) == 2, said
    assert "cannot be asked" in said[0]
    assert "again" in said[1]


async def _runs(backend: SlurmBackend, handle: Any) -> bool:
    return (await backend.observe([handle]))[handle].state is Observed.RUNNING
