"""What a session must not see or change stays so when it is replaced outside while the session runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from openai4s_provisioner.sandbox.covers import uncovered
from openai4s_provisioner.sandbox.interpreter import interpreter_prefixes
from openai4s_provisioner.sandbox.policy import session_spec
from openai4s_provisioner.sandbox.spec import SandboxSpec

LOOKS = """
import os, time
tried = {sentinel!r}
while not os.path.exists(tried):
    time.sleep(0.01)
for path, mode in {paths!r}:
    try:
        with open(path, mode) as file:
            print(path, file.read() if mode == "r" else file.write("evil"), flush=True)
    except OSError as error:
        print(path, error.strerror, flush=True)
print("looked", flush=True)
time.sleep(1000)
"""


def home_as_workspace(node: Any) -> SandboxSpec:
    home = node.root / "home"
    (home / ".ssh").mkdir(parents=True, exist_ok=True)
    (home / ".ssh" / "key").write_text("the old key")
    (home / ".netrc").write_text("the old password")
    (home / ".bashrc").write_text("# old\n")
    return session_spec(
        workspace=str(home),
        home=str(home),
        home_source=str(node.root / "session-home"),
        state_paths=[str(node.root / "state")],
        jupyter_paths=[],
        prefixes=interpreter_prefixes(),
    )


def renamed_over(path: Path, text: str) -> None:
    draft = path.with_name("draft")
    draft.write_text(text)
    draft.rename(path)


def folder_made_anew(path: Path) -> None:
    path.rename(path.with_name("moved-away"))
    path.mkdir()
    (path / "key").write_text("the new key")


def test_what_is_replaced_outside_is_covered_again(node: Any) -> None:
    spec = home_as_workspace(node)
    home, sentinel = node.root / "home", node.root / "home" / "look-now"
    paths = [(f"{home}/.netrc", "r"), (f"{home}/.ssh/key", "r"), (f"{home}/.bashrc", "w")]
    code = LOOKS.format(sentinel=str(sentinel), paths=paths)
    kernel = node.start(node.launch((sys.executable, "-c", code), cwd=str(home)), spec=spec)
    node.wait_for("isolation")
    node.wait_for("kernel_started")
    renamed_over(home / ".netrc", "the new password")
    renamed_over(home / ".bashrc", "# new\n")
    folder_made_anew(home / ".ssh")
    places, init = kernel._sandbox.covered(kernel._spec), kernel._init.pid
    assert uncovered(init, places)
    node.run_until(lambda: not uncovered(init, places), "everything is covered")
    sentinel.touch()
    node.run_until(lambda: "looked" in kernel._output.tail(), "the kernel's look")
    seen = kernel._output.tail()
    assert "password" not in seen
    assert "the new key" not in seen
    assert (home / ".bashrc").read_text() == "# new\n"


def test_what_cannot_be_covered_again_ends_the_session(node: Any) -> None:
    spec = home_as_workspace(node)
    home = node.root / "home"
    node.start(node.launch(("/bin/sleep", "1000"), cwd=str(home)), spec=spec)
    node.wait_for("kernel_started")
    (home / "elsewhere").write_text("the new password")
    (home / ".netrc").unlink()
    (home / ".netrc").symlink_to("elsewhere")
    node.wait_for("kernel_exited")
    refused = [event for event in node.events if event["type"] == "isolation" and not event["ok"]]
    assert f"{home}/.netrc" in refused[0]["sentence"]


def test_a_namespace_of_the_session_s_own_is_covered_too(node: Any) -> None:
    spec = home_as_workspace(node)
    home, sentinel = node.root / "home", node.root / "home" / "look-now"
    code = LOOKS.format(sentinel=str(sentinel), paths=[(f"{home}/.netrc", "r")])
    launch = node.launch(("unshare", "-Um", sys.executable, "-c", code), cwd=str(home))
    kernel = node.start(launch, spec=spec)
    node.wait_for("kernel_started")
    renamed_over(home / ".netrc", "the new password")
    places, init = kernel._sandbox.covered(kernel._spec), kernel._init.pid
    node.run_until(lambda: not uncovered(init, places), "everything is covered")
    sentinel.touch()
    node.run_until(lambda: "looked" in kernel._output.tail(), "the kernel's look")
    assert "password" not in kernel._output.tail()
