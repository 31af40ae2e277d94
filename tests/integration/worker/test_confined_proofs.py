"""What is proven inside a sandbox before a kernel runs in it: isolation and workspace; and that none runs without."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner.sandbox.covers import CoveredPlace
from openai4s_provisioner.sandbox.probe import ProvingGround
from openai4s_provisioner.sandbox.spec import SandboxSpec

SLEEPER = ("/bin/sh", "-c", "echo started; exec sleep 1000")


def test_the_workspace_is_proven_by_an_answer_beside_the_nonce(node: Any) -> None:
    (node.root / "work" / ".nonce").write_text("n0nce")
    node.start(node.launch(SLEEPER), nonce_name=".nonce")
    proof = node.wait_for("workspace")
    assert proof == {
        "type": "workspace",
        "ok": True,
        "code": "ready",
        "detail": "",
        "nonce": "n0nce",
        "answer_name": ".nonce.rank-0",
    }
    assert (node.root / "work" / ".nonce.rank-0").read_text() == "n0nce"


def test_a_nonce_that_shows_late_is_waited_for(node: Any) -> None:
    node.start(node.launch(SLEEPER), nonce_name=".nonce")
    node.wait_for("kernel_started")
    assert not [event for event in node.events if event["type"] == "workspace"]
    (node.root / "work" / ".nonce").write_text("late")
    assert node.wait_for("workspace")["nonce"] == "late"


def test_a_missing_workspace_is_named(node: Any) -> None:
    node.start(
        node.launch(SLEEPER), spec=replace(node.spec, workspace=str(node.root / "not-there")), nonce_name=".nonce"
    )
    proof = node.wait_for("workspace")
    assert (proof["ok"], proof["code"]) == (False, "missing")
    assert str(node.root / "not-there") in proof["detail"]
    assert node.wait_for("kernel_exited")["tail"] == proof["detail"], "all that a restart can tell"


def test_without_a_kernel_isolation_and_workspace_are_proven(node: Any) -> None:
    (node.root / "work" / ".nonce").write_text("n0nce")
    node.start(None, nonce_name=".nonce")
    assert node.wait_for("isolation")["ok"]
    assert node.wait_for("workspace")["ok"]
    assert node.wait_for("kernel_exited")["exit_code"] == 0


class SandboxThatConfinesNothing:
    """It looks like a sandbox: the same program at the same place, and no wall around it."""

    def __init__(self, program: Path) -> None:
        self._program = program

    def wrap(self, spec: Any, argv: Any, *, keep_fds: Any = ()) -> list[str]:
        return [str(self._program) if word.startswith("/run/openai4s") else word for word in argv]

    def covered(self, spec: SandboxSpec) -> list[CoveredPlace]:
        return []


class SandboxThatEndsAtOnce:
    def wrap(self, spec: Any, argv: Any, *, keep_fds: Any = ()) -> list[str]:
        return ["/bin/sh", "-c", "echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1"]

    def covered(self, spec: SandboxSpec) -> list[CoveredPlace]:
        return []


@pytest.mark.parametrize("kind", ["confines nothing", "ends at once"])
def test_no_kernel_runs_where_isolation_is_not_proven(node: Any, kind: str) -> None:
    broken = {"confines nothing": SandboxThatConfinesNothing(node.program), "ends at once": SandboxThatEndsAtOnce()}
    node.start(node.launch(("/bin/sh", "-c", f"touch {node.root}/work/ran")), sandbox=broken[kind])
    isolation = node.wait_for("isolation")
    assert not isolation["ok"]
    assert isolation["sentence"]
    if kind == "confines nothing":
        assert isolation["attacks"]["read_workspace"] == "reached"
    node.wait_for("kernel_exited")
    assert [event["type"] for event in node.events] == ["isolation", "kernel_exited"]
    assert not (node.root / "work" / "ran").exists()


def test_the_inner_itself_starts_nothing_where_an_attack_gets_through(node: Any) -> None:
    """Its worker would end it, too; but by then a kernel could have run."""
    ground = ProvingGround(
        node.spec,
        python=sys.executable,
        program=str(node.program),
        folder=str(node.root / "state"),
        runtime=str(node.root / "scratch"),
    )
    request = {
        "target": ground.target().to_json(),
        "workspace": {"path": node.spec.workspace, "nonce_name": ""},
        "rank": 0,
        "launch": node.launch(("/bin/sh", "-c", f"touch {node.root}/work/ran")),
        "home": node.spec.home,
        "env_marker": "",
    }
    command = [sys.executable, str(node.program), "inner", "0", "1"]
    done = subprocess.run(command, input=json.dumps(request).encode(), stdout=subprocess.PIPE, check=False)
    ground.close()
    assert done.returncode == 3
    assert [json.loads(line)["type"] for line in done.stdout.splitlines()] == ["attacks"]
    assert not (node.root / "work" / "ran").exists()
