"""Granted accelerators inside a real sandbox, with device files made for the test, in a /dev that only it has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checks.parts.own_devices import command_beside, private_devices

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


@pytest.fixture
def cards() -> Iterator[int]:
    """Three cards that anybody may open, one that only root may, and what cards share; the process that has them."""
    if os.getuid() != 0:
        pytest.skip("only root makes device files")
    modes = {"nvidia90": 0o666, "nvidia91": 0o666, "nvidia92": 0o666, "nvidia93": 0o600, "nvidiactl": 0o666}
    with private_devices(modes) as holder:
        yield holder


def inside(cards: int, user: Any, program: Path, look: str, **environment: str) -> list[str]:
    """What a command sees in a sandbox that this account makes in such an environment."""
    root = user.home / "devices"
    copy = user.home / "worker.pyz"
    if not copy.exists():
        copy.write_bytes(program.read_bytes())
        copy.chmod(0o644)
    argv = command_beside(cards, user.uid, user.gid, [sys.executable, "-c", PROGRAM, str(root), str(copy), look])
    account = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "USER": user.name, "HOME": str(user.home)}
    done = subprocess.run(argv, env=account | environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_ordinary_user_sees_the_granted_card_under_its_new_number(
    cards: int, ordinary_user: Any, program: Path
) -> None:
    seen = inside(cards, ordinary_user, program, LOOK, CUDA_VISIBLE_DEVICES="1")
    assert seen == ["/dev/nvidia91", "/dev/nvidiactl", "CUDA=0 ZE="]
    seen = inside(cards, ordinary_user, program, LOOK, CUDA_VISIBLE_DEVICES="2,0")
    assert seen == ["/dev/nvidia90", "/dev/nvidia92", "/dev/nvidiactl", "CUDA=1,0 ZE="]


def test_what_may_not_be_opened_is_not_shown_and_nothing_is_when_nothing_was_granted(
    cards: int, ordinary_user: Any, program: Path
) -> None:
    assert "/dev/nvidia93" not in inside(cards, ordinary_user, program, LOOK), "no word: what can be opened"
    assert inside(cards, ordinary_user, program, LOOK, CUDA_VISIBLE_DEVICES="NoDevFiles") == ["CUDA=NoDevFiles ZE="]


def test_a_device_inside_is_the_device_and_not_a_file_of_its_name(
    cards: int, ordinary_user: Any, program: Path
) -> None:
    look = "stat -c '%F %Hr:%Lr' /dev/nvidia90; (: < /dev/nvidia90) 2>&1 | grep -c 'No such device'"
    seen = inside(cards, ordinary_user, program, look, CUDA_VISIBLE_DEVICES="0")
    assert seen == ["character special file 240:0", "1"], "the system looked for a driver: it let the program at it"
