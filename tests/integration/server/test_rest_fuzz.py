"""Whatever a caller sends, the REST interface answers as rest-api.yml says, and goes on.

In the full check at length; here with few questions for each operation.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checks.parts.rest_fuzz import fuzz
from checks.parts.server import Server, running_server
from checks.parts.suite import FULL_LENGTH

from .conftest import sessions, shown, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(1800 if os.environ.get(FULL_LENGTH) else 240)]
SEED = int(os.environ.get("OPENAI4S_SEED", "1"))
EXAMPLES = 150 if os.environ.get(FULL_LENGTH) else 4


async def ended_session(server: Server, kernel: str) -> str:
    """A session that is over, with a task that ran in it."""
    opened = await server.started_session(kernel, "ended.ipynb")
    workload_id: str = (await sessions(server))[0]["workload_id"]
    assert (await server.ask("DELETE", f"api/sessions/{opened['id']}")).code == 204

    async def is_over() -> bool:
        return bool((await shown(server, f"sessions/{workload_id}"))["state"] == "ended")

    await until(is_over, "the session is over")
    return workload_id


def ended_command(work: Path) -> str:
    def run(*words: str) -> str:
        cli = [sys.executable, "-m", "openai4s_provisioner.jupyter.cli", *words]
        done = subprocess.run(cli, check=False, capture_output=True, text=True, cwd=work, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    workload_id = run("submit", "--profile", "default", "--", "sh", "-c", "echo hello")
    run("wait", workload_id)
    return workload_id


async def test_every_answer_is_as_described(
    place: Any, work: Path, session_kernel: str, no_process_left: Any, figure: Callable[[str, object], None]
) -> None:
    command = await asyncio.to_thread(ended_command, work)
    async with running_server(work, place.root / "server.log") as server:
        ended = await ended_session(server, session_kernel)
        await server.started_session(session_kernel, "live.ipynb")
        live = next(each["workload_id"] for each in await sessions(server) if each["state"] == "ready")
        answer = await server.ask("POST", f"openai4s/sessions/{live}/tasks", {"argv": ["sleep", "1000"]})
        task = json.loads(answer.body)["task_id"]
        ids = {
            "/openai4s/sessions/": live,
            "/openai4s/sessions/{workload_id}/log": ended,
            "/openai4s/sessions/{workload_id}/stop": ended,
            "/openai4s/sessions/{workload_id}/start-again": live,
            "/openai4s/batches/": command,
            "/openai4s/tasks/": task,
        }
        token = server._headers["Authorization"].split()[1]
        right, said = await asyncio.to_thread(fuzz, server._url, token, ids, place.root, EXAMPLES, SEED)
        figure("questions", next((line.strip() for line in said.splitlines() if "generated" in line), "?"))
        assert right, said
        assert live in [each["workload_id"] for each in await sessions(server)], "the server goes on"
        assert "/jupyter/rest_" not in (place.root / "server.log").read_text(), (
            "no handler has raised what it should not"
        )
        assert server.stop() == 0
