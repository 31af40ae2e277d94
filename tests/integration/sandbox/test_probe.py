"""The probe: every attack bites outside and is stopped inside; and a sandbox with one wall missing is found out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner.orchestration.bundle import write_worker_zipapp
from openai4s_provisioner.sandbox.attacks import ATTACKS, Target, run_attacks
from openai4s_provisioner.sandbox.bubblewrap import Bubblewrap
from openai4s_provisioner.sandbox.covers import CoveredPlace
from openai4s_provisioner.sandbox.decoy import Decoy
from openai4s_provisioner.sandbox.home import prepare_real_home, prepare_session_home
from openai4s_provisioner.sandbox.interpreter import interpreter_prefixes
from openai4s_provisioner.sandbox.policy import session_spec
from openai4s_provisioner.sandbox.probe import ProbeResult, prove
from openai4s_provisioner.sandbox.seam import Sandbox
from openai4s_provisioner.sandbox.spec import SandboxSpec

Prove = Callable[..., ProbeResult]


@pytest.fixture
def program(place: Any) -> Path:
    (place.root / "exchange").mkdir()
    return write_worker_zipapp(place.root / "exchange")


@pytest.fixture
def spec(place: Any) -> SandboxSpec:
    """The hardest case: the workspace is the person's home, and our state lies in it."""
    state = place.home / "state"
    state.mkdir()
    (state / "secret").write_text("x")
    prepare_session_home(str(state / "session-home"))
    prepare_real_home(str(place.home), "/bin/bash", [])
    return session_spec(
        workspace=str(place.home),
        home=str(place.home),
        home_source=str(state / "session-home"),
        state_paths=[str(state)],
        jupyter_paths=[],
        prefixes=interpreter_prefixes(),
        network="private",
    )


@pytest.fixture
def run_probe(place: Any, program: Path, spec: SandboxSpec) -> Prove:
    def run(sandbox: Sandbox | None = None, *, spec: SandboxSpec = spec, **more: Any) -> ProbeResult:
        given: dict[str, Any] = {"python": sys.executable, "program": str(program), "folder": str(place.home / "state")}
        return prove(sandbox or Bubblewrap(), spec, **given, **more)

    return run


def test_every_attack_bites_outside_and_is_stopped_inside(run_probe: Prove) -> None:
    result = run_probe()
    assert result.verified, result
    assert set(result.attacks) == set(ATTACKS)
    assert set(result.attacks.values()) == {(True, True)}


def test_the_probe_leaves_nothing_behind(run_probe: Prove, place: Any) -> None:
    def everything() -> dict[str, bytes]:
        paths = [place.root / name for name in place.everything()]
        return {str(path): path.read_bytes() if path.is_file() else b"" for path in paths}

    run_probe()  # makes the mount points of a session in the home
    before = everything()
    run_probe()
    assert everything() == before


class SandboxWithAHole:
    """Bubblewrap, with its command line changed."""

    def __init__(self, change: Callable[[list[str]], list[str]]) -> None:
        self._change = change

    def wrap(self, spec: SandboxSpec, argv: Any, *, keep_fds: Any = ()) -> list[str]:
        words = Bubblewrap().wrap(spec, argv)
        end = words.index("--")
        return [*self._change(words[:end]), *words[end:]]

    def covered(self, spec: SandboxSpec) -> list[CoveredPlace]:
        return []


def test_a_hidden_folder_that_comes_to_exist_meanwhile_is_no_open_door(
    run_probe: Prove, place: Any, spec: SandboxSpec
) -> None:
    """Programs make folders in a home at any time; what was not there is hidden from the next session on."""
    inside_home = [Path(path) for path in spec.masked if path.startswith(f"{place.home}/")]
    keys = next(path for path in inside_home if not path.exists())

    def make_keys(words: list[str]) -> list[str]:
        keys.mkdir(parents=True)
        (keys / "key").write_text("key")
        return words

    assert run_probe(SandboxWithAHole(make_keys)).verified
    assert keys.exists()


def without(*option: str) -> Callable[[list[str]], list[str]]:
    def change(words: list[str]) -> list[str]:
        size = len(option)
        for place in range(len(words)):
            if tuple(words[place : place + size]) == option:
                return words[:place] + words[place + size :]
        raise AssertionError(f"{option} is not on the command line")

    return change


HOLES: dict[str, tuple[Callable[[str], Callable[[list[str]], list[str]]], set[str]]] = {
    "no pid namespace": (
        lambda _: without("--unshare-pid"),
        {"list_process", "signal_zero", "signal_process"},
    ),
    "no private network": (lambda _: without("--unshare-net"), {"connect_abstract_socket"}),
    "the state is not masked": (
        lambda home: (
            lambda words: [
                *without("--perms", "0700", "--tmpfs", f"{home}/state")(
                    without("--remount-ro", f"{home}/state")(words)
                ),
            ]
        ),
        {"read_workspace", "read_credential", "read_hidden_folders", "write_decoy_login_file"},
    ),
    "a login file is not protected": (
        lambda home: without("--ro-bind", f"{home}/.bashrc", f"{home}/.bashrc"),
        {"write_login_files"},
    ),
    "the temporary folder is shown": (
        lambda _: lambda words: [*words, "--bind", os.environ["TMPDIR"], os.environ["TMPDIR"]],
        {"read_private_temp", "connect_kernel_socket", "connect_worker_socket"},
    ),
    "the host's processes are shown": (
        lambda _: lambda words: [*without("--unshare-pid")(words), "--bind", "/proc", "/proc"],
        {"list_process"},
    ),
}


@pytest.mark.parametrize("hole", HOLES)
def test_a_sandbox_with_a_hole_is_found_out(run_probe: Prove, place: Any, hole: str) -> None:
    make, expected = HOLES[hole]
    result = run_probe(SandboxWithAHole(make(str(place.home))))
    assert not result.verified
    reached = {name for name, (_, stopped) in result.attacks.items() if not stopped}
    assert expected <= reached, result
    assert all(bites for bites, _ in result.attacks.values())


class NoWalls:
    """What every attack must get through: the attacker runs as it is."""

    def __init__(self, program: Path) -> None:
        self._program = program

    def wrap(self, spec: SandboxSpec, argv: Any, *, keep_fds: Any = ()) -> list[str]:
        return [str(self._program) if word == "/run/openai4s-program" else word for word in argv]

    def covered(self, spec: SandboxSpec) -> list[CoveredPlace]:
        return []


def test_without_any_wall_every_attack_gets_through(run_probe: Prove, program: Path) -> None:
    result = run_probe(NoWalls(program))
    assert not result.verified
    assert {name for name, (_, stopped) in result.attacks.items() if not stopped} == set(ATTACKS)


@pytest.fixture
def decoy(place: Any, program: Path) -> Iterator[Decoy]:
    made = Decoy([sys.executable, "-I", str(program), "decoy"], str(place.root), str(place.root / "tmp"))
    yield made
    made.close()


def test_the_victim_is_as_before(decoy: Decoy) -> None:
    target = decoy.target()
    assert not [name for name, reached in run_attacks(target).items() if not reached]
    status = Path(f"/proc/{target.pid}/status").read_text()
    assert "State:\tT" not in status
    assert "State:\tt" not in status
    assert "TracerPid:\t0" in status


def test_the_victim_goes_with_its_parent_and_takes_its_folders_along(
    place: Any, program: Path, wait_until: Any
) -> None:
    code = "import sys; from openai4s_provisioner.sandbox.decoy import Decoy; import json, time\n" + (
        "d = Decoy([sys.executable, '-I', sys.argv[1], 'decoy'], sys.argv[2], sys.argv[2])\n"
        "print(json.dumps(d.target().to_json()), flush=True); time.sleep(1000)"
    )
    command = [sys.executable, "-c", code, str(program), str(place.root / "tmp")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
    assert parent.stdout is not None
    target = Target.from_json(json.loads(parent.stdout.readline()))
    assert os.path.exists(target.credential_file)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not os.path.exists(f"/proc/{target.pid}"), "the decoy has ended")
    assert list((place.root / "tmp").iterdir()) == []


def test_a_process_with_the_victims_number_is_not_the_victim(decoy: Decoy) -> None:
    """As inside a pid namespace, where the number may belong to one of our own."""
    mistaken = replace(decoy.target(), pid=os.getpid())
    reached = {name for name, hit in run_attacks(mistaken).items() if hit}
    by_number = {"list_process", "signal_zero", "signal_process", "trace_process", "enter_namespaces", "read_memory"}
    by_number |= {"read_environment", "read_through_root", "read_through_folder", "read_through_descriptor"}
    assert not reached & by_number


def test_a_backend_can_add_attacks_of_its_own(run_probe: Prove, place: Any) -> None:
    secret = place.root / "client.conf"
    secret.write_text("x")
    stopped = run_probe(extra=[("use_client", ["/bin/cat", str(secret)])])
    assert stopped.attacks["use_client"] == (True, True)
    blunt = run_probe(extra=[("use_client", ["/bin/false"])])
    assert not blunt.verified
    assert "use client" in blunt.sentence
    reached = run_probe(extra=[("use_client", ["/bin/true"])])
    assert not reached.verified
    assert reached.attacks["use_client"] == (True, False)


@pytest.mark.parametrize(
    ("complaint", "remedy"),
    [
        ("bwrap: setting up uid map: Permission denied", "user namespaces"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "container"),
        ("bwrap: Unknown option --perms", "make bwrap work"),
    ],
)
def test_a_sandbox_program_that_does_not_work_is_told_with_the_remedy(
    run_probe: Prove, place: Any, complaint: str, remedy: str
) -> None:
    program = place.root / "bwrap"
    program.write_text(f'#!/bin/sh\necho "{complaint}" >&2\nexit 1\n')
    program.chmod(0o755)
    result = run_probe(Bubblewrap(str(program)))
    assert not result.verified
    assert remedy in result.sentence
    assert "administrator" in result.sentence or "container" in result.sentence


def test_a_probe_that_does_not_end_in_time_is_no_broken_sandbox(
    run_probe: Prove, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openai4s_provisioner.sandbox.probe._ATTACKS_S", 0.2)
    program = place.root / "bwrap"
    program.write_text("#!/bin/sh\nexec sleep 20\n")
    program.chmod(0o755)
    result = run_probe(Bubblewrap(str(program)))
    assert not result.verified
    assert "did not end within 0.2 s" in result.sentence
