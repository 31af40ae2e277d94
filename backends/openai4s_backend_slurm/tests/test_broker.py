"""The one place that runs commands: what they get, how long they may take, and what their failures mean."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from openai4s_backend_slurm.broker import (
    LONGEST_OUTPUT_BYTES,
    Absent,
    Broker,
    BrokerError,
    Denied,
    Failed,
    NotStarted,
    Refused,
    TimedOut,
    Unreachable,
)


def broker(base: Path, body: str, deadline_s: float = 10.0, **options: Any) -> Broker:
    program = base / "command"
    program.write_text(f"#!{sys.executable} -IS\nimport os, sys, time\n{body}\n")
    program.chmod(stat.S_IRWXU)
    return Broker(deadline_s, commands={"squeue": str(program)}, **options)


def test_nothing_of_the_server_s_environment_but_what_a_program_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (
        *("SLURM_JOB_ID", "SBATCH_PARTITION", "SQUEUE_FORMAT", "SACCT_FORMAT", "SCANCEL_VERBOSE", "PMI_RANK"),
        *("SALLOC_X", "PMIX_X", "SLURM_CLUSTERS", "JUPYTER_TOKEN", "AWS_SECRET_ACCESS_KEY", "LD_PRELOAD_X", "TMPDIR"),
    )
    for name in names:
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("LC_TIME", "C")
    conf = tmp_path / "slurm.conf"
    conf.touch()
    monkeypatch.setenv("SLURM_CONF", str(conf))
    seen = broker(tmp_path, "print('\\n'.join(sorted(os.environ)))").run(["squeue"]).stdout.split()
    assert not set(names) & set(seen)
    assert {"SLURM_CONF", "PATH", "HOME", "LC_TIME", "SLURM_TIME_FORMAT"} <= set(seen)


def test_the_site_s_configuration_comes_before_the_server_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = tmp_path / "site.conf"
    conf.touch()
    monkeypatch.setenv("SLURM_CONF", "/nonexistent")
    asked = broker(tmp_path, "print(os.environ['SLURM_CONF'])", slurm_conf=str(conf)).run(["squeue"])
    assert asked.stdout.strip() == str(conf)


def test_a_configuration_that_is_not_there_is_no_minute_s_wait(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(Absent, match=r"/nonexistent cannot be read"):
        broker(tmp_path, "time.sleep(60)", slurm_conf="/nonexistent").run(["squeue"])
    assert time.monotonic() - began < 5


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="no-such-command-4711"):
        Broker(1.0).run(["no-such-command-4711"])


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, Absent),
        (errno.EACCES, Absent),
        (errno.ENOEXEC, Absent),
        (errno.EAGAIN, NotStarted),
        (errno.ENOMEM, NotStarted),
        (errno.EMFILE, NotStarted),
    ],
)
def test_a_machine_that_is_short_of_something_is_not_one_without_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[BrokerError]
) -> None:
    def fails(*arguments: Any, **options: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "Popen", fails)
    with pytest.raises(kind, match="cannot be run"):
        Broker(5.0).run(["true"])


def test_arguments_arrive_as_they_are_and_no_shell_sees_them(tmp_path: Path) -> None:
    words = ["$(id)", "a b", "'", '"', "\n", "*", "", "é", "--x=1,2"]
    asked = broker(tmp_path, "print(repr(sys.argv[1:]))").run(["squeue", *words])
    assert asked.stdout.strip() == repr(words)


def test_at_the_deadline_the_whole_group_is_ended(tmp_path: Path) -> None:
    body = (
        "pid = os.fork()\n"
        f"if pid == 0: open({str(tmp_path / 'child')!r}, 'w').write(str(os.getpid()))\n"
        "print('so far', flush=True)\ntime.sleep(60)"
    )
    with pytest.raises(TimedOut, match="did not answer within 1 s") as caught:
        broker(tmp_path, body, 1.0).run(["squeue"])
    assert "so far" in caught.value.stdout
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 5
    while _lives(child):
        assert time.monotonic() < deadline, "a child outlived its command"
        time.sleep(0.02)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_child_that_holds_the_pipes_does_not_hold_us(tmp_path: Path) -> None:
    body = "if os.fork() == 0:\n    os.setsid(); time.sleep(30)\nelse:\n    print('4242')"
    began = time.monotonic()
    asked = broker(tmp_path, body, 2.0)
    with pytest.raises(TimedOut):
        asked.run(["squeue"])
    assert time.monotonic() - began < 10
    for pid in filter(str.isdigit, os.listdir("/proc")):  # ours alone: by the path of its program
        try:
            if str(tmp_path).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(int(pid), signal.SIGKILL)
        except OSError:
            continue


def test_output_is_bounded(tmp_path: Path) -> None:
    body = f"block = 'x' * (1 << 20)\nfor _ in range({LONGEST_OUTPUT_BYTES >> 20} + 8): sys.stdout.write(block)"
    with pytest.raises(Failed, match="printed more than"):
        broker(tmp_path, body, 30.0).run(["squeue"])


def test_what_is_no_text_is_no_obstacle(tmp_path: Path) -> None:
    assert "4242" in broker(tmp_path, r"os.write(1, b'\xff\xfe 4242\n')").run(["squeue"]).stdout


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", Unreachable),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", Unreachable),
        ("Munge encode failed: Failed to access", Unreachable),
        ("scancel: error: Kill job error on job id 9: Access/permission denied", Denied),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", Refused),
        ("squeue: fatal: Could not establish a configuration source", Absent),
        ("Invalid qos specification; Socket timed out on send/recv operation", Unreachable),  # doubt comes first
        ("it is Tuesday", Failed),
        ("", Failed),
    ],
)
def test_a_failure_has_a_type(tmp_path: Path, said: str, kind: type[BrokerError]) -> None:
    with pytest.raises(kind) as caught:
        broker(tmp_path, f"sys.stderr.write({said!r}); sys.exit(3)").run(["squeue"])
    assert caught.value.returncode == 3
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    "argument",
    [
        "--export=AWS_SECRET_ACCESS_KEY=abc",
        "--comment=password=hunter2",
        "--comment=api_key=1",
        "HF_TOKEN=x",
        "--export=ALL,GITHUB_TOKEN=x",
        "--comment=ghp_" + "a" * 36,
        "--comment=AKIA" + "A" * 16,
        "--comment=-----BEGIN RSA PRIVATE KEY-----",
        "--x=eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc",
    ],
)
def test_what_looks_like_a_credential_is_not_sent_nor_shown(tmp_path: Path, argument: str) -> None:
    with pytest.raises(Refused, match="looks like a credential") as caught:
        broker(tmp_path, "print(1)").run(["squeue", argument])
    assert argument.rpartition("=")[2] not in str(caught.value) or len(argument.rpartition("=")[2]) < 4


@pytest.mark.parametrize("argument", ["--comment=openai4s:4b1d4b1d", "--partition=token-ring", "--licenses=keys:2"])
def test_ordinary_words_pass(tmp_path: Path, argument: str) -> None:
    broker(tmp_path, "print(1)").run(["squeue", argument])
