"""Granted accelerators inside a real sandbox, with device files that are made for the test: as root, and as nobody."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import os, sys
from openai4s_provisioner.sandbox.home import prepare_session_home
from openai4s_provisioner.sandbox.interpreter import interpreter_prefixes
from openai4s_provisioner.sandbox.policy import session_spec
from openai4s_provisioner.transport.loop import Loop
from openai4s_provisioner.worker.kernel_maker import KernelMaker

root, program, command = sys.argv[1:]
for name in ("work", "scratch", "home"):
    os.makedirs(f"{root}/{name}", mode=0o700, exist_ok=True)
prepare_session_home(f"{root}/home")
spec = session_spec(workspace=f"{root}/work", home=f"{root}/nowhere", home_source=f"{root}/home", state_paths=[],
                    jupyter_paths=[], prefixes=interpreter_prefixes())
loop = Loop()

class Printed:
    def feed(self, data): os.write(1, data)
    def tail(self): return ""
    def close(self): pass

def heard(event):
    if event["type"] == "isolation" and not event["ok"]: print(event)
    if event["type"] == "kernel_exited": loop.stop()

maker = KernelMaker(loop, spec=spec, workspace={"path": f"{root}/work", "nonce_name": ""}, rank=0,
                    scratch=f"{root}/scratch", program=program, ranks=1, gpus=1)
launch = {"launch_id": "x", "argv": ["sh", "-c", command], "cwd": f"{root}/work", "key": "",
          "env": {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "7", "ZE_AFFINITY_MASK": "the-server-s"}}
kernel = maker(launch, heard, Printed())
kernel.start()
loop.run()
kernel.close()
"""
LOOK = "ls -d /dev/nvidia* /dev/infiniband/* 2>/dev/null; echo CUDA=$CUDA_VISIBLE_DEVICES ZE=$ZE_AFFINITY_MASK"
LOCK = "/run/lock/openai4s-device-tests"
MAJOR = 240  # for local use: no driver answers


@pytest.fixture
def cards() -> Iterator[list[str]]:
    """Three cards that anybody may open, one that only root may, and what cards share."""
    if os.getuid() != 0:
        pytest.skip("only root makes device files")
    made = {"nvidia90": 0o666, "nvidia91": 0o666, "nvidia92": 0o666, "nvidia93": 0o600, "nvidiactl": 0o666}
    paths = [f"/dev/{name}" for name in made]
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the machine has one /dev, and cards are counted
        yield from devices(paths, list(made.values()))


def devices(paths: list[str], modes: list[int]) -> Iterator[list[str]]:
    for number, (path, mode) in enumerate(zip(paths, modes, strict=True)):
        os.mknod(path, stat.S_IFCHR | mode, os.makedev(MAJOR, number))
        os.chmod(path, mode)
    try:
        yield paths
    finally:
        for path in paths:
            os.unlink(path)


def inside(user: Any, program: Path, look: str, **environment: str) -> list[str]:
    """What a command sees in a sandbox that this account makes in such an environment."""
    root = user.home / "devices"
    copy = user.home / "worker.pyz"
    if not copy.exists():
        copy.write_bytes(program.read_bytes())
        copy.chmod(0o644)
    done = user.run([sys.executable, "-c", PROGRAM, str(root), str(copy), look], env=environment)
    assert done.returncode == 0, done.stderr
    return list(done.stdout.splitlines())


def test_an_ordinary_user_sees_the_granted_card_under_its_new_number(
    cards: list[str], ordinary_user: Any, program: Path
) -> None:
    seen = inside(ordinary_user, program, LOOK, CUDA_VISIBLE_DEVICES="1")
    assert seen == ["/dev/nvidia91", "/dev/nvidiactl", "CUDA=0 ZE="]
    seen = inside(ordinary_user, program, LOOK, CUDA_VISIBLE_DEVICES="2,0")
    assert seen == ["/dev/nvidia90", "/dev/nvidia92", "/dev/nvidiactl", "CUDA=1,0 ZE="]


def test_what_may_not_be_opened_is_not_shown_and_nothing_is_when_nothing_was_granted(
    cards: list[str], ordinary_user: Any, program: Path
) -> None:
    assert "/dev/nvidia93" not in inside(ordinary_user, program, LOOK), "no word: what can be opened"
    assert inside(ordinary_user, program, LOOK, CUDA_VISIBLE_DEVICES="NoDevFiles") == ["CUDA=NoDevFiles ZE="]


def test_a_device_inside_is_the_device_and_not_a_file_of_its_name(
    cards: list[str], ordinary_user: Any, program: Path
) -> None:
    look = "stat -c '%F %Hr:%Lr' /dev/nvidia90; (: < /dev/nvidia90) 2>&1 | grep -c 'No such device'"
    seen = inside(ordinary_user, program, look, CUDA_VISIBLE_DEVICES="0")
    assert seen == ["character special file 240:0", "1"], "the system looked for a driver: it let the program at it"
