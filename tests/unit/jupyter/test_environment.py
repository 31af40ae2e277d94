"""What a kernel is given from the server's side: no credential of the server's, and everything its kernelspec sets."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpec

from openai4s_provisioner.jupyter.environment import installation_folders, kernel_argv, session_environment


@pytest.mark.parametrize(
    "name",
    [
        "JUPYTER_TOKEN",
        "JUPYTERHUB_API_TOKEN",
        "JUPYTERHUB_SERVICE_URL",
        "AWS_SECRET_ACCESS_KEY",
        "DATABASE_PASSWORD",
        "GITHUB_TOKEN",
        "openai_api_key",
        "SSH_AUTH_SOCK",
        "CONFIGPROXY_AUTH_TOKEN",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ],
)
def test_credentials_do_not_pass(name: str) -> None:
    assert session_environment({name: "secret", "LANG": "C"}, chosen=[]) == {"LANG": "C"}


def test_what_the_kernelspec_sets_passes_whatever_it_is_called() -> None:
    assert session_environment({"HF_TOKEN": "chosen"}, chosen=["HF_TOKEN"]) == {"HF_TOKEN": "chosen"}


@pytest.mark.parametrize("name", ["PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "OMP_NUM_THREADS", "JPY_SESSION_NAME"])
def test_what_a_program_needs_passes(name: str) -> None:
    assert session_environment({name: "x"}, chosen=[]) == {name: "x"}


@pytest.mark.parametrize("name", ["JPY_PARENT_PID", "TMPDIR", "XDG_RUNTIME_DIR", "JUPYTER_RUNTIME_DIR"])
def test_what_means_something_outside_only_does_not_pass(name: str) -> None:
    assert session_environment({name: "x"}, chosen=[]) == {}


def _spec(*argv: str) -> KernelSpec:
    return KernelSpec(argv=list(argv), resource_dir="/the/resources")


def test_the_command_is_the_kernelspecs_with_the_connection_file_left_open() -> None:
    spec = _spec("python", "-m", "k", "{connection_file}", "{resource_dir}/x", "{cwd}", "{unknown}")
    argv = kernel_argv(spec, ["--more"], {"cwd": "/w", "connection_file": "/not/this"})
    assert argv == [sys.executable, "-m", "k", "{connection_file}", "/the/resources/x", "/w", "{unknown}", "--more"]
    assert spec.argv[0] == "python", "the kernelspec itself is not changed"


def test_a_program_of_its_own_environment_brings_that_environment(tmp_path: Path) -> None:
    environment = tmp_path / "env"
    (environment / "bin").mkdir(parents=True)
    (environment / "conda-meta").mkdir()
    program = environment / "bin" / "R"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    folders = installation_folders([str(program)], Path("/home/someone"))
    assert str(environment) in folders
    assert any(Path(sys.prefix).is_relative_to(folder) for folder in folders), "our own Python runs the inner"


def test_a_program_in_the_home_folder_does_not_uncover_the_home(tmp_path: Path) -> None:
    program = tmp_path / "wrapper.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    folders = installation_folders([str(program)], home=tmp_path)
    assert os.path.realpath(program) in folders
    assert str(tmp_path) not in folders


def test_a_program_that_is_not_there_adds_nothing() -> None:
    assert installation_folders(["no-such-kernel"], Path("/home/x")) == installation_folders([], Path("/home/x"))
