"""One host, one configured range of ports: two servers of one person, and two persons, each with their own port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checks.parts.place import REPOSITORY
from checks.parts.server import Server, running_server

from .test_network_gateway import free_ports

pytestmark = pytest.mark.anyio
CLUSTER = '[profiles.default]\nbackend = "local"\ntransport = "tcp"\n'
SESSION = """
import os, sys
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from openai4s_provisioner.app import ControlPlane
from openai4s_provisioner.jupyter import kernelspecs
from openai4s_provisioner.orchestration.config import default_config
name = kernelspecs.install(KernelSpecManager(), "python3", default_config().profiles["default"]).name
manager = KernelManager(kernel_name=name)
manager.start_kernel(cwd=os.getcwd())
client = manager.blocking_client()
client.start_channels()
client.wait_for_ready(timeout=60)
said = []
client.execute_interactive("print(6 * 7)", timeout=30, output_hook=lambda m: said.append(m["content"].get("text", "")))
(control,) = ControlPlane._shared.values()
print("".join(said).strip(), *control._running.gateway.network_addresses, flush=True)
sys.stdin.readline()
client.stop_channels()
manager.shutdown_kernel(now=True)
"""


@pytest.fixture(autouse=True)
def one_range(place: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    cluster = place.root / "cluster.toml"
    cluster.write_text(CLUSTER)
    first = free_ports(4)
    monkeypatch.setenv("OPENAI4S_CLUSTER_TOML", str(cluster))
    monkeypatch.setenv("OPENAI4S_WORKER_LISTEN", f"127.0.0.1:{first}-{first + 3}")
    return first


async def run_a_cell(server: Server, kernel: str) -> str:
    session = await server.started_session(kernel, "n.ipynb")
    said: list[str] = []
    async with server.channels(session["kernel"]["id"]) as channels:
        await channels.execute("print(6 * 7)", lambda message: said.append(message["content"].get("text", "")))
    return "".join(said).strip()


async def test_two_jupyter_servers_of_one_person(work: Path, session_kernel: str, place: Any, one_range: int) -> None:
    logs = [place.root / "one.log", place.root / "two.log"]
    async with running_server(work, logs[0]) as one, running_server(work, logs[1]) as two:
        assert await run_a_cell(one, session_kernel) == "42"
        assert await run_a_cell(two, session_kernel) == "42"
        assert await run_a_cell(one, session_kernel) == "42"
    ports = [re.findall(r"told to dial 127\.0\.0\.1:(\d+)", log.read_text())[0] for log in logs]
    assert ports == [str(one_range), str(one_range + 1)]
    assert len(list(place.root.rglob("gateway.pem"))) == 1


def test_two_persons(work: Path, ordinary_user: Any, place: Any, one_range: int) -> None:
    """This account, and another one that cannot read a file of ours."""
    own = subprocess.Popen(
        [sys.executable, "-c", SESSION], cwd=work, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    theirs = None
    try:
        assert own.stdout is not None
        assert own.stdout.readline().split() == ["42", f"tls:127.0.0.1:{one_range}"]
        home = ordinary_user.home
        cluster = home / "cluster.toml"
        cluster.write_text(CLUSTER)
        cluster.chmod(0o644)
        work_of_theirs = home / "work"
        work_of_theirs.mkdir()
        os.chown(work_of_theirs, ordinary_user.uid, ordinary_user.gid)
        names = ("OPENAI4S_WORKER_LISTEN",)
        theirs = ordinary_user.popen(
            [sys.executable, "-c", SESSION],
            cwd=work_of_theirs,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"OPENAI4S_CLUSTER_TOML": str(cluster), "PYTHONPATH": str(REPOSITORY)}
            | {name: os.environ[name] for name in names},
        )
        assert theirs.stdout.readline().split() == ["42", f"tls:127.0.0.1:{one_range + 1}"]
    finally:
        for each in (own, theirs):
            if each is not None:
                each.communicate("done\n", timeout=60)
    assert (own.returncode, theirs.returncode) == (0, 0)
