"""Tasks in a session that a kernel holds, by ``jupyter openai4s run``, against a real server process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

CLI = [sys.executable, "-m", "openai4s_provisioner.jupyter.cli"]
HOLDER = """
import sys
from jupyter_client.manager import KernelManager
km = KernelManager(kernel_name={kernel!r})
km.start_kernel()
print(km.provisioner.kernel_id, flush=True)
for line in sys.stdin:
    if line == "restart\\n":
        km.restart_kernel(now=True)
        print("restarted", flush=True)
km.shutdown_kernel()
"""


@dataclass
class Session:
    process: subprocess.Popen[str]
    kernel_id: str
    work: Path

    def run(self, *command: str, name: str = "", timeout: float = 60) -> subprocess.CompletedProcess[str]:
        words = [*CLI, "run", name or self.kernel_id, "--", *command]
        return subprocess.run(words, cwd=self.work, text=True, capture_output=True, timeout=timeout)

    def begin(self, *command: str) -> subprocess.Popen[str]:
        words = [*CLI, "run", self.kernel_id, "--", *command]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, cwd=self.work, text=True, stdout=pipe, stderr=pipe)

    def shut_down(self) -> None:
        self.process.communicate(timeout=60)


@pytest.fixture
def session(place: Any, work: Path, session_kernel: str, no_process_left: Any) -> Iterator[Session]:
    pipe = subprocess.PIPE
    program = HOLDER.format(kernel=session_kernel)
    process = subprocess.Popen([sys.executable, "-c", program], cwd=work, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    opened = Session(process, process.stdout.readline().strip(), work)
    assert opened.kernel_id
    yield opened
    if process.poll() is None:
        opened.shut_down()
    no_process_left()


def running(text: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cmdline() == text.split():
                found.append(process)
    return found


def test_a_task_prints_while_it_runs_and_ends_as_it_ended(session: Session, work: Path) -> None:
    task = session.begin("sh", "-c", "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two; exit 3")
    assert task.stdout is not None
    assert task.stdout.readline() == "one\n"
    (work / "go").touch()
    assert task.communicate(timeout=60)[0] == "two\n"
    assert task.returncode == 3
    for command, status in (("exit 0", 0), ("exit 200", 200), ("kill -9 $$", 137)):
        assert session.run("sh", "-c", command).returncode == status


def test_it_is_confined_in_the_session_s_own_place(session: Session, place: Any, work: Path) -> None:
    state = place.root / "home/.local/state/openai4s"
    result = session.run("sh", "-c", f"pwd; ls {state}/state.db {state}/exchange/attempts/*; echo >made")
    assert result.stdout.splitlines()[0] == str(work)
    assert "state.db'" in result.stdout
    assert "worker-0.log" not in result.stdout
    assert (work / "made").exists()


def test_all_of_a_large_output_arrives(session: Session) -> None:
    result = session.run("sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' x")
    assert len(result.stdout) == 5_000_000
    assert result.returncode == 0


def test_several_at_once_do_not_mix(session: Session) -> None:
    tasks = [session.begin("sh", "-c", f"for i in 1 2 3; do echo {n}; sleep 0.1; done; exit {n}") for n in range(3)]
    for number, task in enumerate(tasks):
        out, err = task.communicate(timeout=60)
        assert (out, err, task.returncode) == (f"{number}\n" * 3, "", number)


def test_an_interrupt_cancels_the_task_and_waits_for_it(session: Session) -> None:
    task = session.begin("sh", "-c", "trap 'echo asked; exit 7' TERM; echo began; while :; do sleep 0.05; done")
    assert task.stdout is not None
    assert task.stdout.readline() == "began\n"
    task.send_signal(signal.SIGINT)
    out, _ = task.communicate(timeout=60)
    assert out.endswith("asked\n")
    assert task.returncode == 7


def test_what_does_not_listen_is_killed(session: Session, wait_until: Any) -> None:
    task = session.begin("sh", "-c", "trap '' TERM; sleep 4711 & echo began; wait; wait")
    assert task.stdout is not None
    assert task.stdout.readline() == "began\n"
    task.send_signal(signal.SIGTERM)
    task.communicate(timeout=60)
    assert task.returncode == 137
    wait_until(lambda: not running("sleep 4711"), "nothing of the task is left")


def test_a_task_whose_caller_was_killed_goes_on_is_listed_and_can_be_stopped(session: Session, wait_until: Any) -> None:
    task = session.begin("sleep", "4712")
    wait_until(lambda: running("sleep 4712"), "the task runs", 30)
    task.kill()
    task.communicate()
    listed = subprocess.run([*CLI, "ls"], cwd=session.work, text=True, capture_output=True)
    (line,) = [line for line in listed.stdout.splitlines() if "\tTASK\t" in line]
    assert "sleep 4712" in line
    assert "RUNNING" in line

    def stop(name: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*CLI, "stop", name], cwd=session.work, text=True, capture_output=True)

    task_id = line.split("\t")[0]
    unclear = stop(task_id[:2])
    assert (unclear.returncode, "first 4 characters" in unclear.stderr) == (1, True)
    assert running("sleep 4712"), "two letters stop nothing"
    stopped = stop(task_id)
    assert (stopped.returncode, stopped.stdout.split("\t")[:3]) == (0, [task_id, "TASK", "ENDED"])
    wait_until(lambda: not running("sleep 4712"), "the task is gone", 30)
    assert stop(task_id).stdout == stopped.stdout, "one that is over is told as that"


def test_a_kernel_s_restart_leaves_tasks_alone(session: Session, wait_until: Any) -> None:
    task = session.begin("sh", "-c", "echo began; while [ ! -e go ]; do sleep 0.05; done")
    assert task.stdout is not None
    assert task.stdout.readline() == "began\n"
    assert session.process.stdin is not None
    assert session.process.stdout is not None
    session.process.stdin.write("restart\n")
    session.process.stdin.flush()
    assert session.process.stdout.readline() == "restarted\n"
    assert task.poll() is None
    (session.work / "go").touch()
    task.communicate(timeout=60)
    assert task.returncode == 0


def test_shutting_the_session_down_ends_its_tasks_and_leaves_nothing(session: Session, wait_until: Any) -> None:
    task = session.begin("sh", "-c", "sleep 4713; echo never")
    wait_until(lambda: running("sleep 4713"), "the task runs", 30)
    session.shut_down()
    out, err = task.communicate(timeout=60)
    assert out == ""
    assert task.returncode != 0
    assert "ended" in err
    wait_until(lambda: not running("sleep 4713"), "the task is gone")


def test_without_a_session_nothing_is_submitted(session: Session, place: Any) -> None:
    receipts = place.root / "home/.local/state/openai4s/receipts"
    before = sorted(os.listdir(receipts))
    unknown = session.run("true", name="nobody")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "none is submitted for it" in unknown.stderr
    no_command = subprocess.run([*CLI, "run", session.kernel_id], cwd=session.work, text=True, capture_output=True)
    assert no_command.returncode == 1
    assert "Put it behind --" in no_command.stderr
    missing = session.run("no-such-program")
    assert missing.returncode == 127
    assert "cannot be started" in missing.stdout
    assert sorted(os.listdir(receipts)) == before
    session.shut_down()
    late = session.run("true")
    assert late.returncode == 1
    assert "none is submitted for it" in late.stderr


def test_a_task_of_a_killed_server_is_refused_and_ends(
    place: Any, work: Path, session_kernel: str, no_process_left: Any, monkeypatch: pytest.MonkeyPatch, wait_until: Any
) -> None:
    site = place.root / "cluster.toml"
    site.write_text("[limits]\nserver_grace_s = 1\n")
    monkeypatch.setenv("OPENAI4S_CLUSTER_TOML", str(site))
    pipe = subprocess.PIPE
    program = HOLDER.format(kernel=session_kernel)
    process = subprocess.Popen([sys.executable, "-c", program], cwd=work, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    session = Session(process, process.stdout.readline().strip(), work)
    task = session.begin("sleep", "4714")
    wait_until(lambda: running("sleep 4714"), "the task runs", 30)
    process.kill()
    process.communicate()
    refused = session.run("true")
    assert refused.returncode == 1
    assert "went away" in refused.stderr
    _, err = task.communicate(timeout=60)
    assert task.returncode == 1
    assert "went away" in err
    no_process_left()


def test_a_session_goes_by_its_own_id_and_by_its_kernel_s_in_every_command(session: Session) -> None:
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*CLI, *words], cwd=session.work, text=True, capture_output=True, timeout=60)

    listed = call("ls").stdout.split("\t")[0]
    assert session.run("true", name=listed).returncode == 0
    assert call("keep", listed).returncode == 0
    assert f"id:           {listed}" in call("show", session.kernel_id[:8]).stdout
    said = call("logs", session.kernel_id)
    assert (said.returncode, said.stdout) == (1, "")
    assert f"{listed} is a session, not a command" in said.stderr
    assert f"jupyter openai4s show {listed}" in said.stderr
    assert call("stop", session.kernel_id[:3]).returncode == 1, "too short a beginning is nobody's"
    assert call("stop", session.kernel_id[:8]).returncode == 0
