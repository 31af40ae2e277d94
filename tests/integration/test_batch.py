"""Commands and notebooks by ``jupyter openai4s submit``, for real: one process per call, as a person types them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

CLI = [sys.executable, "-m", "openai4s_provisioner.jupyter.cli"]


def call(*words: str, cwd: Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CLI, *words], cwd=cwd, text=True, capture_output=True, timeout=timeout)


def done(*words: str, cwd: Path) -> str:
    result = call(*words, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.fixture(autouse=True)
def nothing_left(no_process_left: Any) -> Iterator[None]:
    yield
    no_process_left()


def submit(work: Path, *command: str) -> str:
    return done("submit", "--", *command, cwd=work)


@pytest.mark.parametrize(
    ("command", "status"),
    [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137), ("kill -TERM $$", 143)],
)
def test_wait_exits_as_the_command_did(work: Path, command: str, status: int) -> None:
    assert call("wait", submit(work, "sh", "-c", command), cwd=work).returncode == status


def test_a_command_is_listed_shown_and_logged(work: Path) -> None:
    identity = submit(work, "sh", "-c", "echo out; echo err >&2; cat go; exit 3")
    assert "BATCH" in done("ls", cwd=work)
    assert call("wait", identity[:8], cwd=work).returncode == 3
    assert done("logs", identity, cwd=work).splitlines()[:2] == ["out", "err"]
    shown = done("show", identity, cwd=work)
    assert "The command ended with exit code 3." in shown
    assert "FAILED" in shown
    assert list(work.iterdir()) == [], "no proof is left in the workspace"


def test_a_command_outlives_the_call_that_submitted_it_and_is_settled_by_another(work: Path) -> None:
    identity = submit(work, "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; echo went")
    assert identity[:12] in done("ls", cwd=work)  # this call adopted it
    assert "wish:         RUNNING" in done("show", identity, cwd=work), "nobody is to stop it"
    following = subprocess.Popen([*CLI, "logs", "-f", identity], cwd=work, stdout=subprocess.PIPE, text=True)
    waiting = subprocess.Popen([*CLI, "wait", identity], cwd=work)
    (work / "go").touch()
    assert waiting.wait(60) == 0
    assert following.communicate(timeout=60)[0] == "went\n"


@pytest.mark.parametrize("written", ["claim", "started"])
def test_a_killed_submitter_loses_nothing(
    work: Path, place: Any, wait_until: Any, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    """Killed while it submits: what was begun is found, once; what was not ends with that word, and never runs."""
    settings = place.root / "cluster.toml"
    settings.write_text('[control]\nsettle_window_s = 3\n[profiles.default]\nbackend = "local"\n')
    monkeypatch.setenv("OPENAI4S_CLUSTER_TOML", str(settings))
    command = [*CLI, "submit", "--", "sh", "-c", "echo x >>ran; sleep 1"]
    submitter = subprocess.Popen(command, cwd=work, stdout=subprocess.DEVNULL)
    receipts = place.root / "home/.local/state/openai4s/receipts"
    wait_until(lambda: next(receipts.glob(f"*/{written}"), None), "a receipt", 30)
    submitter.send_signal(signal.SIGKILL)
    submitter.wait()
    (line,) = done("ls", cwd=work).splitlines()
    waited = call("wait", line.split("\t")[0], cwd=work, timeout=100)
    if waited.returncode == 0:
        assert (work / "ran").read_text() == "x\n"
    else:
        assert written == "claim", "what was begun is found"
        assert "ended before it was sent" in waited.stderr
        assert not (work / "ran").exists()


def test_a_killed_waiter_changes_nothing(work: Path, wait_until: Any) -> None:
    identity = submit(work, "sh", "-c", "touch began; while [ ! -e go ]; do sleep 0.05; done")
    waiter = subprocess.Popen([*CLI, "wait", identity], cwd=work)
    wait_until((work / "began").exists, "the command runs", 30)
    waiter.kill()
    waiter.wait()
    (work / "go").touch()
    assert call("wait", identity, cwd=work).returncode == 0


def test_stop_ends_the_whole_tree_and_says_who_asked(work: Path, wait_until: Any) -> None:
    identity = submit(work, "sh", "-c", "trap '' TERM; sleep 1000 & touch began; sleep 1001")
    wait_until((work / "began").exists, "the command runs", 30)
    assert "CANCELLED" in done("stop", identity, cwd=work)
    shown = done("show", identity, cwd=work)
    assert "USER_CANCELLED" in shown
    assert "stopped at its owner's request" in shown
    assert call("wait", identity, cwd=work).returncode != 0
    assert done("stop", identity, cwd=work), "a second stop is nothing"


def test_a_command_stopped_at_once_was_stopped_and_nothing_else(work: Path) -> None:
    """Also before its sandbox was proven: a proof that was cut short accuses nobody."""
    for _ in range(3):
        shown = done("stop", submit(work, "sleep", "4715"), cwd=work)
        assert "CANCELLED" in shown, shown


def test_it_is_confined_like_a_session(work: Path, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = place.home / ".ssh"
    secret.mkdir()
    (secret / "id").write_text("a key")
    monkeypatch.setenv("MY_TOKEN", "secret")
    monkeypatch.setenv("CHOSEN_TOKEN", "wanted")
    state = place.root / "home/.local/state/openai4s"
    script = f"cat {secret}/id; ls {state}; echo $MY_TOKEN $CHOSEN_TOKEN; echo >here; exit 0"
    identity = done("submit", "--env", "CHOSEN_TOKEN", "--", "sh", "-c", script, cwd=work)
    assert call("wait", identity, cwd=work).returncode == 0
    said = done("logs", identity, cwd=work).splitlines()
    assert said[-1] == "wanted"
    assert "a key" not in said
    assert all("No such file" in line or "denied" in line or "cannot" in line for line in said[:-1]), said
    assert (work / "here").exists()
    database = (state / "state.db").read_bytes() + b"".join(p.read_bytes() for p in state.glob("state.db-*"))
    assert b"wanted" not in database


def test_output_is_bounded_and_the_loss_is_said(work: Path) -> None:
    identity = submit(work, "sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' x; echo; echo the end")
    assert call("wait", identity, cwd=work).returncode == 0
    result = call("logs", identity, cwd=work)
    assert result.stdout.endswith("the end\n")
    assert len(result.stdout) < 10_000_000
    assert "bytes of earlier output were dropped" in result.stderr


def test_a_command_that_vanishes_inside_is_127_and_says_so(work: Path) -> None:
    (work / "run").write_text("#!/no/such/interpreter\n")
    (work / "run").chmod(0o755)
    identity = submit(work, "./run")
    assert call("wait", identity, cwd=work).returncode == 127
    assert "the command ./run cannot be started" in done("logs", identity, cwd=work)


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["submit"], 1, "Name a notebook, or put a command behind --"),
        (["submit", "--", "no-such-program"], 1, "no command 'no-such-program'"),
        (["submit", "--profile", "nope", "--", "true"], 1, "no profile 'nope'"),
        (["submit", "notes.txt"], 1, "not a notebook"),
        (["submit", "absent.ipynb"], 1, "cannot be read"),
        (["submit", "../out.ipynb"], 1, "lies outside"),
        (["submit", "--env", "NOT_SET_HERE", "--", "true"], 1, "names no variable"),
        (["show", "abcdef"], 1, "no workload 'abcdef'"),
        (["ls", "--", "x"], 2, "runs nothing"),
        (["submit", "--cpus", "-1", "--", "true"], 2, "unrecognized"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    work: Path, place: Any, words: list[str], status: int, says: str
) -> None:
    result = call(*words, cwd=work)
    assert (result.returncode, result.stdout) == (status, "")
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert not (place.root / "home/.local/state/openai4s").exists()


def test_somebody_else_s_workload_is_not_touched(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = submit(work, "true")
    monkeypatch.setenv("LOGNAME", "somebody-else")
    for verb in ("show", "stop", "wait", "logs"):
        result = call(verb, identity, cwd=work)
        assert result.returncode == 1
        assert "belongs to" in result.stderr
    monkeypatch.undo()


def test_a_notebook_runs_with_a_kernel_of_its_own(work: Path) -> None:
    cells = [nbformat.v4.new_code_cell(source) for source in ("print(6 * 7)", "open('made', 'w').close()", "1 / 0")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells[:2]), work / "good.ipynb")
    nbformat.write(nbformat.v4.new_notebook(cells=cells), work / "bad.ipynb")
    good = done("submit", "good.ipynb", "-o", "out.ipynb", cwd=work)
    bad = done("submit", "bad.ipynb", cwd=work)
    assert call("wait", good, cwd=work).returncode == 0
    assert call("wait", bad, cwd=work).returncode == 1
    assert nbformat.read(work / "out.ipynb", as_version=4).cells[0].outputs[0].text == "42\n"
    written = nbformat.read(work / "bad.ipynb", as_version=4)
    assert written.cells[0].outputs[0].text == "42\n", "what was computed before the error is kept"
    assert written.cells[2].outputs[0].ename == "ZeroDivisionError"
    assert "ZeroDivisionError" in done("logs", bad, cwd=work)


def test_an_ordinary_user_submits_too(ordinary_user: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = ordinary_user.home / "project"
    made = ordinary_user.run(["mkdir", "-p", str(folder)])
    assert made.returncode == 0
    env = {"PATH": f"{Path(sys.executable).parent}:{os.defpath}"}
    identity = ordinary_user.run([*CLI, "submit", "--", "sh", "-c", "id -u; exit 4"], env=env, cwd=folder)
    assert identity.returncode == 0, identity.stderr
    waited = ordinary_user.run([*CLI, "wait", identity.stdout.strip()], env=env, cwd=folder)
    assert waited.returncode == 4, waited.stderr
    logs = ordinary_user.run([*CLI, "logs", identity.stdout.strip()], env=env, cwd=folder)
    assert logs.stdout.strip() == str(ordinary_user.uid)
