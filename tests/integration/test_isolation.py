"""Two sessions of one person on one machine: neither reaches the other, and without proof none is started.

The attacker is a cell in a real session, the victim another real session. The same code, run by an unconfined process
of the same account in the same test, must reach the victim: an attack that never bites proves nothing.
"""

from __future__ import annotations

import asyncio
import glob
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.ioloop.manager import AsyncIOLoopKernelManager
from jupyter_client.manager import KernelManager

from openai4s_provisioner.orchestration.errors import Refused
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.worker.scratch import scratch_path

from .conftest import SessionLab, processes_below

pytestmark = pytest.mark.anyio

# Each is code that raises unless it reaches the victim, over the names in `t`.
ATTACKS = {
    "read its workspace": "assert open(t['file']).read() == t['secret']",
    "write into its workspace": "open(t['file'], 'r+').close()",
    "read its private temporary file": "assert open(t['temp']).read() == t['secret']",
    "read its environment": "assert 'PATH=' in open(f\"/proc/{t['kernel']}/environ\").read()",
    "see what it has open": "assert any('memfd' in os.readlink(e.path) "
    "for e in os.scandir(f\"/proc/{t['kernel']}/fd\"))",
    "send it a signal": "os.kill(t['kernel'], 0)",
    "send its worker a signal": "os.kill(t['worker'], 0)",
    "enter its root": "os.listdir(f\"/proc/{t['kernel']}/root\")",
    "connect to its kernel": "socket.socket(socket.AF_UNIX).connect(t['kernel_socket'])",
    "connect to the server's end of its kernel": "socket.socket(socket.AF_UNIX).connect(t['endpoint'])",
    "connect to the gateway": "socket.socket(socket.AF_UNIX).connect(t['gateway'])",
    "read the secret that credentials are made with": "assert len(open(t['key'], 'rb').read()) == 32",
    "list the attempts": "assert os.listdir(t['attempts'])",
    "change what the next login runs": "open(t['login'], 'a').close(); assert 'real' in open(t['login']).read()",
}
PROGRAM = """
import json, os, socket
def reached(code, t):
    try:
        exec(code, {{'t': t, 'os': os, 'socket': socket}})
    except Exception:
        return False
    return True
t = json.loads({target!r})
results = json.dumps({{name: reached(code, t) for name, code in json.loads({attacks!r}).items()}})
"""


@pytest.fixture
def private_site(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every session gets a workspace of its own."""
    site = place.root / "cluster.toml"
    site.write_text('[profiles.default]\nbackend = "local"\nworkspace = "private"\n')
    monkeypatch.setenv("OPENAI4S_CLUSTER_TOML", str(site))
    (place.home / ".profile").write_text("# the real one\n")


@pytest.fixture
async def victim(private_site: None, lab: SessionLab, session_kernel: str, work: Path) -> AsyncIterator[SessionLab]:
    victim = SessionLab(AsyncIOLoopKernelManager(kernel_name=session_kernel), work)
    await victim.start()
    yield victim
    assert victim.client is not None
    victim.client.stop_channels()
    await victim.manager.shutdown_kernel(now=True)
    victim.manager.context.destroy(linger=0)


async def test_a_session_cannot_reach_its_sibling(victim: SessionLab, lab: SessionLab, place: Any) -> None:
    target = await _target(victim, place)
    await lab.start()
    program = PROGRAM.format(target=json.dumps(target), attacks=json.dumps(ATTACKS))
    unconfined = await asyncio.to_thread(_results_outside, program)
    assert [name for name, reached in unconfined.items() if not reached] == [], "every attack bites when unconfined"
    await lab.run(program)
    confined: dict[str, bool] = json.loads(eval(await lab.value("results")))
    assert [name for name, reached in confined.items() if reached] == [], "none gets out of a session"
    assert await victim.value("x") == "41", "the victim never noticed"


def _results_outside(program: str) -> dict[str, bool]:
    command = [sys.executable, "-c", f"{program}print(results)"]
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
    results: dict[str, bool] = json.loads(done.stdout)
    return results


async def _target(victim: SessionLab, place: Any) -> dict[str, Any]:
    """Everything an attacker could know, and more."""
    secret = "a word that only the victim has"
    setup = f"""
import os, tempfile
x = 41
open('secret.txt', 'w').write({secret!r})
open('/tmp/secret.txt', 'w').write({secret!r})
held = os.memfd_create('held')
"""
    await victim.run(setup)
    cwd = (await victim.value("os.getcwd()")).strip("'")
    state = place.home / ".local/state/openai4s"
    situation = await victim.situation()
    (worker,) = (each for each in processes_below(place.root, ".pyz worker ") if each.cmdline()[2].endswith(".pyz"))
    kernel = next(each for each in worker.children(recursive=True) if "ipykernel_launcher" in " ".join(each.cmdline()))
    scratch = scratch_path(situation.allocation.allocation_id, 0)
    running = victim.control._running
    assert running is not None
    return {
        "secret": secret,
        "file": f"{cwd}/secret.txt",
        "temp": f"/proc/{kernel.pid}/root/tmp/secret.txt",
        "kernel": kernel.pid,
        "worker": worker.pid,
        "kernel_socket": glob.glob(f"{scratch}/**/k-1", recursive=True)[0],
        "endpoint": victim.manager.ip + "-1",
        "gateway": running.gateway.address.removeprefix("unix:"),
        "key": str(state / "secret"),
        "attempts": str(state / "exchange/attempts"),
        "login": str(place.home / ".profile"),
    }


def test_without_bubblewrap_a_session_is_refused_with_the_remedy(
    place: Any, work: Path, session_kernel: str, control_planes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = place.root / "bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    before = place.everything()
    manager = KernelManager(kernel_name=session_kernel)
    with pytest.raises(Refused) as refusal:
        manager.start_kernel(cwd=str(work))
    manager.context.destroy(linger=0)
    assert refusal.value.reason is Reason.ISOLATION_UNVERIFIED
    assert "bubblewrap" in str(refusal.value)
    assert "install" in str(refusal.value)
    assert place.everything() == before, "nothing was written"
    assert not processes_below(place.root, ".pyz")


@pytest.mark.skipif(os.getuid() != 0, reason="it is an ordinary user already who runs this")
@pytest.mark.timeout(600)
def test_all_of_this_and_the_lifecycle_as_an_ordinary_user(ordinary_user: Any) -> None:
    """Users are not root: the same tests, run by a throw-away account."""
    here = Path(__file__).parent
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore::pytest.PytestCacheWarning",
    ]
    command += [f"--rootdir={here.parent.parent}", str(here / "test_isolation.py"), str(here / "test_lifecycle.py")]
    done = ordinary_user.run(command, cwd=here.parent.parent, timeout=590)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
