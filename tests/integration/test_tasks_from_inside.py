"""The command ``openai4s`` inside a session: it asks over the tunnel, and is admitted like anybody else."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from openai4s_provisioner.orchestration.ports import TaskRunner
from openai4s_provisioner.orchestration.store import Store, tasks

from .conftest import SessionLab, processes_below

pytestmark = pytest.mark.anyio

SHELL = "import subprocess\ndef sh(text):\n    r = subprocess.run(text, shell=True, text=True, capture_output=True)\n"
SHELL += "    return r.returncode, r.stdout, r.stderr\n"


async def shell(lab: SessionLab, text: str) -> tuple[int, str, str]:
    await lab.run(SHELL)
    status, out, err = await asyncio.wait_for(_value(lab, text), 60)
    return status, out, err


async def _value(lab: SessionLab, text: str) -> tuple[int, str, str]:
    import ast

    found = ast.literal_eval(await lab.value(f"sh({text!r})"))
    assert isinstance(found, tuple)
    return found[0], found[1], found[2]


async def test_a_task_runs_prints_and_ends_as_it_ended(lab: SessionLab) -> None:
    await lab.start()
    assert await shell(lab, "openai4s run -- sh -c 'pwd; exit 4'") == (4, f"{lab.work}\n", "")
    assert (await shell(lab, "openai4s run -- sh -c 'kill -9 $$'"))[0] == 137
    assert (await shell(lab, "openai4s run -- no-such-program"))[0] == 127
    assert (await shell(lab, "openai4s run -- head -c 5000000 /dev/zero | wc -c"))[1].strip() == "5000000"
    assert (await shell(lab, "openai4s run"))[0] == 2
    status, out, err = await shell(lab, "openai4s keep")
    assert (status, out.startswith("kept"), err) == (0, True, "")
    assert (await shell(lab, "echo x >/run/openai4s-bin/openai4s"))[0] != 0, "the command itself is read-only"


async def test_it_is_written_down_with_who_asked(lab: SessionLab) -> None:
    await lab.start()
    assert (await shell(lab, "openai4s run -- true"))[0] == 0
    situation = await lab.situation()
    running = lab.control._running
    assert running is not None
    store = running.sessions._store
    kinds = [event.kind for event in await store.run(Store.events, situation.workload.workload_id)]
    assert "task_opened" in kinds
    assert await store.run(tasks.open_tasks) == []


async def test_leaving_it_cancels_the_task(lab: SessionLab, place: Any) -> None:
    await lab.start()
    assert (await shell(lab, "timeout -s INT 1 openai4s run -- sleep 4720"))[0] == 124
    await lab.until(lambda: not processes_below(place.root, "sleep 4720"), "the task is gone")


async def test_after_a_restart_it_works_again(lab: SessionLab) -> None:
    await lab.start()
    await lab.manager.restart_kernel(now=True)
    await lab.connect()
    assert await shell(lab, "openai4s run -- echo again") == (0, "again\n", "")


async def test_a_backend_that_cannot_run_tasks_says_so(lab: SessionLab) -> None:
    await lab.start()
    backends = lab.control._admitting.backends
    backends["local"] = BackendWithoutTasks()  # type: ignore[assignment]
    status, out, err = await shell(lab, "openai4s run -- true")
    assert (status, out) == (1, "")
    assert "no task can be run beside the kernel" in err


class BackendWithoutTasks:
    """Everything but `check_task`. Only its kind is looked at."""

    name = "local"


def test_it_is_none() -> None:
    assert not isinstance(BackendWithoutTasks(), TaskRunner)


async def test_garbage_at_the_door_harms_nobody(lab: SessionLab) -> None:
    await lab.start()
    probe = (
        "import socket\n"
        "for said in (b'', b'{}\\n', b'x' * 300000, b'[' * 5000 + b'\\n', b'{\"argv\": 1, \"cwd\": 2}\\n'):\n"
        "    s = socket.socket(socket.AF_UNIX); s.settimeout(10); s.connect('/run/openai4s/run')\n"
        "    try:\n"
        "        s.sendall(said); s.shutdown(socket.SHUT_WR); s.recv(10)\n"
        "    except OSError:\n"
        "        pass\n"
        "    s.close()\n"
    )
    reply = await lab.run(probe)
    assert reply["status"] == "ok", json.dumps(reply)
    assert await shell(lab, "openai4s run -- echo fine") == (0, "fine\n", "")
