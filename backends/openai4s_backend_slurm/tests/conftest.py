"""The bench of this backend's tests: a real cluster, reached through SLURM_CONF."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.models import ResourceProfile
from openai4s_provisioner.testing.backend_lab import BackendLab


@pytest.fixture
def backend_lab(tmp_path: Path) -> Iterator[BackendLab]:
    lab = BackendLab(
        factory="openai4s_backend_slurm:create_backend",
        state_dir=tmp_path / "state",
        exchange_dir=tmp_path / "exchange",
        profile=ResourceProfile("one", "slurm", memory_mb=100, backend_options={"partition": "cpu"}),
        refused_profile=ResourceProfile("odd", "slurm", backend_options={"colour": "blue"}),
        options={"min_interval_s": 0.05, "slurm_conf": os.environ["SLURM_CONF"]},
        absent_handle="4000000000/no-such-token",
        patience_s=40.0,
    )
    try:
        yield lab
    finally:
        tokens = [path.name for path in (lab.state_dir / "slurm").glob("*") if path.is_symlink()]
        for token in tokens:
            subprocess.run(["scancel", f"--name=o4s-{token}"], check=False)
        lab.end_everything()
