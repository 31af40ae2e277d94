"""The example of docs/backends.md, installed as a stranger would: it keeps the contract, and a session runs on it."""

from __future__ import annotations

import fcntl
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpecManager

from checks.parts.place import REPOSITORY
from openai4s_provisioner.jupyter import kernelspecs
from openai4s_provisioner.orchestration.models import ResourceProfile
from openai4s_provisioner.testing.backend_contract import BackendContract
from openai4s_provisioner.testing.backend_lab import BackendLab

from .conftest import SessionLab

EXAMPLE = REPOSITORY / "docs" / "example_backend"


def is_led(folder: Path) -> bool:
    descriptor = os.open(folder / "lock", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@pytest.fixture
def installed_example(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an installer would leave: the package, and the metadata that its pyproject.toml asks for."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    metadata = place.root / "site" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1\n")
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n" + "".join(f"{name} = {what}\n" for name, what in table.items()) for group, table in groups]
    (metadata / "entry_points.txt").write_text("".join(lines))
    for folder in (EXAMPLE, metadata.parent):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(EXAMPLE), str(metadata.parent))))


class TestExampleBackend(BackendContract):
    @pytest.fixture
    def backend_lab(self, tmp_path: Path, installed_example: None, wait_until: Any) -> Iterator[BackendLab]:
        lab = BackendLab(
            factory="openai4s_backend_pier:create_backend",
            state_dir=tmp_path / "state",
            exchange_dir=tmp_path / "exchange",
            profile=ResourceProfile("one", "pier", backend_options={"nice": 1}),
            refused_profile=ResourceProfile("two-machines", "pier", nodes=2),
            options={"grace_s": 0.5},
        )
        try:
            yield lab
        finally:
            lab.end_everything()
        folders = list((tmp_path / "state" / "pier").glob("*"))
        wait_until(lambda: not any(is_led(folder) for folder in folders), "no allocation is left")


@pytest.fixture
def session_kernel(place: Any, installed_example: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a site whose only profile is the example's."""
    site = place.root / "cluster.toml"
    site.write_text('default_profile = "small"\n[profiles.small]\nbackend = "pier"\nnice = 2\n')
    monkeypatch.setenv("OPENAI4S_CLUSTER_TOML", str(site))
    return kernelspecs.install(KernelSpecManager(), "python3", ResourceProfile("small", "pier")).name


@pytest.mark.anyio
async def test_a_session_runs_restarts_and_ends_on_it(lab: SessionLab, place: Any) -> None:
    await lab.start()
    assert await lab.value("6 * 7") == "42"
    assert await lab.value("__import__('os').nice(0)") == str(min(19, os.nice(0) + 2)), (
        "the profile's own option reaches the allocation"
    )
    before = await lab.situation()
    assert before.allocation.backend == "pier"
    await lab.manager.restart_kernel(now=True)
    await lab.connect()
    assert await lab.value("6 * 7") == "42"
    assert (await lab.situation()).allocation.handle == before.allocation.handle, "a restart keeps the allocation"
    assert (await lab.run("import subprocess; subprocess.run(['openai4s', 'run', '--', 'true'], check=True)"))[
        "status"
    ] == "ok", "and it holds tasks"
    await lab.manager.shutdown_kernel()
    assert (await lab.situation()).workload.phase.is_terminal
    assert not list((place.home / ".local/state/openai4s/pier").glob("*")), "its receipt is acknowledged"
