"""A real Jupyter server with our extension, in front of a queue that a test opens when it likes."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpecManager

from checks.parts.server import Server, running_server
from openai4s_provisioner.jupyter import kernelspecs
from openai4s_provisioner.orchestration.config import parse_config

DEADLINE_S = 40.0
WAITING = "waiting for a machine"
BACKEND = Path(__file__).with_name("queueing_backend.py")
CLUSTER_TOML = """
default_profile = "waits"

[limits]
server_grace_s = 20

[control]
period_s = 0.2
steady_period_s = 1
recovery_pause_s = 0.2

[backends.queue]
folder = "{folder}"

[profiles.waits]
backend = "queue"
display_name = "queued session"
cpus = 2
memory_mb = 4000
walltime_s = 3600
max_walltime_s = 7200

[profiles.fixed]
backend = "queue"
walltime_s = 3600

[profiles.waits.limits]
memory_mb = 8000
gpus = 1
"""


@dataclass(frozen=True)
class Queue:
    """Where sessions wait. `kernel` is the kernelspec of those that do."""

    folder: Path
    kernel: str

    def open(self) -> None:
        (self.folder / "room").touch()

    @property
    def submissions(self) -> list[str]:
        """What was submitted so far, one line each."""
        file = self.folder / "submissions"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def cluster_toml() -> str:
    """What a test may add to: ``{folder}`` is the queue's."""
    return CLUSTER_TOML


@pytest.fixture
def queue(place: Any, monkeypatch: pytest.MonkeyPatch, cluster_toml: str) -> Queue:
    folder, site = place.root / "queue", place.root / "site"
    info = site / "queueing-1.0.dist-info"
    for each in (folder, info):
        each.mkdir(parents=True)
    (site / BACKEND.name).symlink_to(BACKEND)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: queueing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[openai4s_provisioner.backends]\nqueue = queueing_backend:create_backend\n")
    toml = place.root / "cluster.toml"
    toml.write_text(cluster_toml.replace("{folder}", str(folder)))
    monkeypatch.setenv("OPENAI4S_CLUSTER_TOML", str(toml))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH", "")))))
    config = parse_config(toml.read_text(), toml)
    names = [kernelspecs.install(KernelSpecManager(), "python3", each).name for each in config.profiles.values()]
    return Queue(folder, names[0])


async def until(condition: Any, what: str, deadline_s: float = DEADLINE_S) -> Any:
    """The first true value of what `condition()` awaits."""
    deadline = time.monotonic() + deadline_s
    while not (value := await condition()):
        assert time.monotonic() < deadline, f"still not true after {deadline_s:g} s: {what}"
        await asyncio.sleep(0.05)
    return value


async def shown(server: Server, path: str) -> Any:
    """What GET openai4s/PATH answers."""
    answer = await server.ask("GET", f"openai4s/{path}")
    assert answer.code == 200, answer.body
    return json.loads(answer.body)


async def sessions(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await shown(server, "sessions"))["sessions"]
    return found


async def waits(server: Server) -> bool:
    """Whether a session is in the queue."""
    return any(each["waiting"] and each["waiting"]["sentence"] == WAITING for each in await sessions(server))


StartServer = Callable[..., AbstractAsyncContextManager[Server]]


@pytest.fixture
def start_server(place: Any, work: Path) -> StartServer:
    """`async with start_server(*options) as server`: a server process with our extension enabled, as installed."""

    def start(*options: str) -> AbstractAsyncContextManager[Server]:
        return running_server(work, place.root / "server.log", *options)

    return start
