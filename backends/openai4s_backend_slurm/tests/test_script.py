"""What is sent: golden texts, and quoting that holds for whatever a path may contain, tried with a real shell."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from openai4s_backend_slurm import script
from openai4s_backend_slurm.profiles import MemoryStyle, SlurmProfile
from openai4s_backend_slurm.script import Job
from openai4s_provisioner.orchestration.models import ResourceProfile

SMALL = Job(
    token="abc123",
    profile=ResourceProfile("small", "slurm"),
    site=SlurmProfile(),
    folder="/x/attempts/one",
    python="/usr/bin/python3",
    program=("/x/worker.pyz", "worker", "/x/attempts/one"),
    script="/x/attempts/one/job.sh",
)
LARGE = replace(
    SMALL,
    profile=ResourceProfile("large", "slurm", cpus=4, memory_mb=8000, gpus=2, walltime_s=5400, nodes=2),
    site=SlurmProfile(
        partition="gpu",
        qos="interactive",
        account="research",
        constraint="a100|h100",
        gpu_type="a100",
        gres="shard:1",
        reservation="course",
        nodelist="g[1-4]",
        exclude="g3",
        exclusive=True,
        licenses="matlab:1",
        modules=("cuda/12.1", "gcc"),
        prologue="ulimit -c 0",
        sbatch_options=("--mail-type=NONE", "--nice"),
    ),
)
IDENTITY = [
    "--job-name=o4s-abc123",
    "--comment=openai4s:abc123",
    "--no-requeue",
    "--open-mode=append",
    "--chdir=/x/attempts/one",
    "--output=job.log",
    "--input=/dev/null",
]


def test_a_small_submission() -> None:
    assert script.submission(SMALL) == [
        *("sbatch", "--parsable", *IDENTITY, "--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=1"),
        "/x/attempts/one/job.sh",
    ]


def test_a_submission_with_everything() -> None:
    assert script.submission(LARGE) == [
        *("sbatch", "--parsable", *IDENTITY),
        *("--partition=gpu", "--qos=interactive", "--account=research", "--constraint=a100|h100"),
        *("--reservation=course", "--nodelist=g[1-4]", "--exclude=g3", "--licenses=matlab:1", "--exclusive"),
        *("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4", "--mem=8000M"),
        *("--gres=gpu:a100:2,shard:1", "--time=1:30:00", "--mail-type=NONE", "--nice"),
        "/x/attempts/one/job.sh",
    ]


def test_memory_may_be_stated_for_each_processor_or_not_at_all() -> None:
    by_cpu = replace(LARGE, site=SlurmProfile(memory_style=MemoryStyle.CPU))
    assert "--mem-per-cpu=2000M" in script.options(by_cpu)
    assert not [o for o in script.options(by_cpu) if o.startswith("--mem=")]
    unstated = replace(LARGE, site=SlurmProfile(memory_style=MemoryStyle.NONE))
    assert not [o for o in script.options(unstated) if o.startswith("--mem")]


def test_a_site_may_remove_or_replace_an_option() -> None:
    site = SlurmProfile(remove_options=("--comment", "--parsable", "--mem"), sbatch_options=("--cpus-per-task=8",))
    sent = script.submission(replace(LARGE, site=site))
    assert not [o for o in sent if o.startswith(("--comment", "--parsable", "--mem="))]
    assert [o for o in sent if o.startswith("--cpus-per-task")] == ["--cpus-per-task=8"]


def test_the_script_of_a_small_submission() -> None:
    assert (
        script.script(SMALL)
        == """\
#!/bin/bash
# One allocation of openai4s_provisioner. Its options came on the command line.
folder=/x/attempts/one
unset SLURM_EXPORT_ENV  # else a step would find no PATH
ended() {
    printf '%s %s\\n' "$1" "${SLURM_JOB_ID:-}" >"$folder/job.exit.part"
    mv -f -- "$folder/job.exit.part" "$folder/job.exit"
}
trap 'ended "$?"' EXIT
trap 'asked=1' TERM INT
printf '%s %s\\n' "${SLURM_JOB_ID:-}" "${SLURM_RESTART_COUNT:-0}" >>"$folder/job.started"
if [ "${SLURM_RESTART_COUNT:-0}" != 0 ]; then
    echo 'This job was put back into the queue. Its kernel cannot follow, so it ends.' >&2
    exit 1
fi
cd -- "$folder" || exit 1
if [ -n "${asked:-}" ]; then exit 143; fi
/usr/bin/python3 -I -S steward.py /usr/bin/python3 -I /x/worker.pyz worker /x/attempts/one
exit
"""
    )


def test_the_script_of_a_large_one_has_modules_prologue_and_a_step_for_all_nodes() -> None:
    lines = script.script(LARGE).splitlines()
    modules = lines.index("type module >/dev/null 2>&1 || . /etc/profile")
    assert lines[modules + 1].startswith("module load cuda/12.1 gcc || {")
    assert lines.index("ulimit -c 0") > modules
    assert lines[-2].startswith("srun --export=ALL --nodes=2 --ntasks=2 --ntasks-per-node=1 ")
    assert lines[-2].endswith(
        "/usr/bin/python3 -I -S steward.py /usr/bin/python3 -I /x/worker.pyz worker /x/attempts/one"
    )


def test_a_job_s_name_begins_with_a_letter_and_holds_its_token() -> None:
    assert script.job_name("0a-b_c.d") == "o4s-0a-b_c.d"
    assert script.is_token("0a-b_c.d")
    assert not any(map(script.is_token, ("", "a b", "a/b", "é", "x" * 129, "a\n")))


# The real shell.

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd()]))"
characters = st.characters(exclude_characters="\0/", codec="utf-8")
names = st.text(characters, min_size=1, max_size=40).filter(
    lambda name: name not in (".", "..") and len(name.encode()) <= 200
)
EVIL = ["a b", "'", '"', "$(touch x)", "`id`", "$HOME", "a\nb", "%j", "--help", "é漢", "\\", "*", "~", "#", "!x", ";&|"]


def run(folder: Path, job: Job) -> subprocess.CompletedProcess[str]:
    """The script, with a program that shows its arguments in the worker's place."""
    path = folder / "job.sh"
    path.write_text(script.script(job), encoding="utf-8")
    environment = {"PATH": os.defpath, "SLURM_JOB_ID": "7"}
    return subprocess.run(["bash", str(path)], env=environment, capture_output=True, text=True, timeout=30, cwd="/")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Any:
    base = tmp_path_factory.mktemp("shell")
    program = base / "show.py"
    program.write_text(f"#!{sys.executable} -IS\n{SHOW}\n")
    program.chmod(stat.S_IRWXU)

    def show(name: str, words: list[str]) -> tuple[list[str], str]:
        folder = base / name
        folder.mkdir(exist_ok=True)
        job = replace(SMALL, folder=str(folder), python=str(program), program=tuple(words))
        done = run(base, job)
        assert done.returncode == 0, done.stderr
        argv, cwd = json.loads(done.stdout or (folder / "job.log").read_text())
        (folder / "job.log").unlink(missing_ok=True)
        assert (folder / "job.exit").read_text() == "0 7\n"
        return argv, cwd

    return base, show


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=names, words=st.lists(st.text(characters, max_size=40), max_size=4))
@example(name="".join(EVIL).replace("/", ""), words=EVIL)
def test_every_word_reaches_the_worker_byte_for_byte(shown: Any, name: str, words: list[str]) -> None:
    base, show = shown
    argv, cwd = show(name, words)
    assert argv == ["-I", "-S", "steward.py", str(base / "show.py"), "-I", *words]
    assert cwd == str(base / name)


@pytest.mark.parametrize("name", EVIL)
def test_an_evil_name_runs_nothing(shown: Any, name: str) -> None:
    base, show = shown
    before = set(os.listdir(base))
    argv, _ = show(name, [name])
    assert argv[-1] == name
    assert set(os.listdir(base)) - before <= {name, "job.sh"}


def test_a_prologue_that_ends_the_script_is_recorded(tmp_path: Path) -> None:
    job = replace(SMALL, folder=str(tmp_path), site=SlurmProfile(prologue="cd /\nexit 9"))
    assert run(tmp_path, job).returncode == 9
    assert (tmp_path / "job.exit").read_text() == "9 7\n"


def test_modules_without_a_module_command_are_explained(tmp_path: Path) -> None:
    job = replace(SMALL, folder=str(tmp_path), site=SlurmProfile(modules=("no-such-thing-4711",)))
    done = run(tmp_path, job)
    assert done.returncode == 1
    assert "The modules of this profile cannot be loaded." in done.stderr


def test_a_missing_python_is_recorded_as_the_shell_says_it(tmp_path: Path) -> None:
    job = replace(SMALL, folder=str(tmp_path), python="/no/such/python")
    assert run(tmp_path, job).returncode == 127
    assert (tmp_path / "job.exit").read_text() == "127 7\n"
