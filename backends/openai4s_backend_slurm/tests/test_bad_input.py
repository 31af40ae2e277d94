"""A wrong `cluster.toml` is one sentence with file, line and key, whoever asks, and no command of the scheduler is run.

Asked for as people ask: by a kernel manager, on the command line, and of a Jupyter server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from checks.parts.server import running_server
from openai4s_backend_slurm.profiles import COMMANDS
from openai4s_provisioner.app import ControlPlane
from openai4s_provisioner.jupyter import cli, kernelspecs
from openai4s_provisioner.orchestration.errors import ProvisionerError
from openai4s_provisioner.orchestration.models import ResourceProfile

PROFILE = """[backends.slurm]
slurm_conf = "{folder}/slurm.conf"
commands = {{ {commands} }}
{option}

[profiles.cluster]
backend = "slurm"
partition = "cpu"  # a valid one, before the wrong one
memory_mb = 1000
gpus = 0
cpus = 3
{key}
python = "/usr/bin/python3"
"""
OPTION_LINE, KEY_LINE = 4, 12
WRONG_KEYS = [
    ('partitoin = "gpu"', "partitoin"),
    ("qos = 7", "qos"),
    ('account = "a\\u0007"', "account"),
    ('exclusive = "yes"', "exclusive"),
    ('memory_style = "gpu"', "memory_style"),
    ('memory_style = "cpu"', "memory_style"),  # 1000 MB for 3 processors
    ('gpu_type = "a100"', "gpu_type"),
    ('modules = "cuda"', "modules"),
    ('modules = ["--force"]', "modules"),
    ("prologue = 3", "prologue"),
    ('path_map = { "home" = "/x" }', "path_map"),
    ('sbatch_options = ["--job-name=mine"]', "sbatch_options"),
    ('sbatch_options = ["--export=AWS_SECRET_ACCESS_KEY=x"]', "sbatch_options"),
    ('remove_options = ["--nodes"]', "remove_options"),
    ("nodelist = []", "nodelist"),
    ("licenses = true", "licenses"),
    ("spool_mb = -1", "spool_mb"),
    ('walltime_s = "1h"', "walltime_s"),
]
WRONG_OPTIONS = [
    ("deadline = 3", "deadline"),
    ("deadline_s = 0", "deadline_s"),
    ('min_interval_s = "1"', "min_interval_s"),
    ("isolation_max_age_s = 1", "isolation_max_age_s"),
    ('mask = ["etc"]', "mask"),
    ("cluster = 3", "cluster"),
    ("min_interval_s = 15", "min_interval_s"),  # with 20 s for a command, more than a question has
]


class Site:
    """A site whose file holds one wrong line, and whose commands only say that they were run."""

    def __init__(self, place: Any, key: str, option: str) -> None:
        self.folder: Path = place.root / "site"
        self.folder.mkdir()
        (self.folder / "slurm.conf").touch()
        command = self.folder / "command"
        command.write_text(f'#!/bin/sh\necho "$0 $*" >>{self.folder}/ran\n')
        command.chmod(0o755)
        commands = ", ".join(f'{name} = "{command}"' for name in COMMANDS)
        self.file: Path = place.root / "cluster.toml"
        self.file.write_text(PROFILE.format(folder=self.folder, commands=commands, key=key, option=option))
        self.kernel = kernelspecs.install(KernelSpecManager(), "python3", ResourceProfile("cluster", "slurm")).name
        self.line = OPTION_LINE if option else KEY_LINE

    def check(self, sentence: str, key: str) -> None:
        assert f"{self.file}, line {self.line}" in sentence
        assert re.search(rf"\b{key}\b", sentence.partition("line ")[2])
        assert sentence.count("\n") == 0, "one sentence"
        assert sentence.endswith("."), sentence
        assert not (self.folder / "ran").exists(), (self.folder / "ran").read_text()


@pytest.fixture
def wrong(place: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`wrong(key, option)`: the site with that line in a profile, or in the backend's own table."""

    def made(key: str = "", option: str = "") -> Site:
        site = Site(place, key, option)
        monkeypatch.setenv("OPENAI4S_CLUSTER_TOML", str(site.file))
        monkeypatch.setenv("OPENAI4S_WORKER_LISTEN", "127.0.0.1:23000-23999")
        return site

    yield made
    for control in list(ControlPlane._shared.values()):
        control.stop()


def started(site: Site, cwd: Path) -> str:
    """What the "Error Starting Kernel" dialog says."""
    manager = KernelManager(kernel_name=site.kernel)
    with pytest.raises(ProvisionerError) as caught:
        manager.start_kernel(cwd=str(cwd))
    manager.context.destroy(linger=0)
    return str(caught.value)


@pytest.mark.parametrize(("line", "key"), WRONG_KEYS)
def test_a_wrong_key_of_a_profile_is_named_with_its_line(place: Any, wrong: Any, line: str, key: str) -> None:
    site = wrong(key=line)
    site.check(started(site, place.root), key)


@pytest.mark.parametrize(("line", "key"), WRONG_OPTIONS)
def test_a_wrong_option_of_the_backend_is_named_with_its_line(place: Any, wrong: Any, line: str, key: str) -> None:
    site = wrong(option=line)
    site.check(started(site, place.root), key)


SOME = [(WRONG_KEYS[0][0], "", WRONG_KEYS[0][1]), ("", WRONG_OPTIONS[1][0], WRONG_OPTIONS[1][1])]


@pytest.mark.parametrize(("key", "option", "named"), SOME)
def test_the_command_line_says_the_same(
    place: Any, wrong: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any, key: str, option: str, named: str
) -> None:
    site = wrong(key, option)
    monkeypatch.chdir(place.root)
    assert cli.main(["submit", "--profile", "cluster", "--", "true"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("jupyter openai4s: ")
    site.check(err.rstrip("\n"), named)


@pytest.mark.anyio
@pytest.mark.parametrize(("key", "option", "named"), SOME)
async def test_a_server_says_the_same(place: Any, wrong: Any, key: str, option: str, named: str) -> None:
    site = wrong(key, option)
    async with running_server(place.root, place.root / "server.log") as server:
        with pytest.raises(RuntimeError, match="the kernel did not start: ") as caught:
            await server.started_session(site.kernel, "a.ipynb")
        site.check(str(caught.value), named)
        answer = json.loads((await server.ask("GET", "openai4s/sessions")).body)
        assert answer["sessions"] == []
        site.check(answer["offline"], named)
        assert server.stop() == 0
