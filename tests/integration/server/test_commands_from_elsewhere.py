"""A command that came from a terminal which is closed again is looked after by the server whose panel shows it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checks.parts.server import running_server

from .conftest import shown, until

pytestmark = pytest.mark.anyio


def submit(work: Path, program: str) -> str:
    cli = [sys.executable, "-m", "openai4s_provisioner.jupyter.cli", "submit", "--", "sh", "-c", program]
    return subprocess.run(cli, check=True, capture_output=True, text=True, cwd=work, timeout=60).stdout.strip()


async def test_a_command_is_carried_on_by_the_server_that_shows_it(
    place: Any, work: Path, no_process_left: Any
) -> None:
    async with running_server(work, place.root / "server.log") as server:
        workload_id = await asyncio.to_thread(submit, work, "until [ -e go-on ]; do sleep 0.1; done")

        async def is_over() -> bool:
            (found,) = (await shown(server, "sessions"))["batches"]
            assert found["workload_id"] == workload_id
            return bool(found["state"] == "ended")

        assert not await is_over()
        (work / "go-on").touch()
        await until(is_over, "its end is seen, though its terminal is closed")

        later = await asyncio.to_thread(submit, work, "sleep 600")
        assert (await server.ask("POST", f"openai4s/batches/{later}/stop")).code == 202

        async def is_stopped() -> bool:
            return bool((await shown(server, f"batches/{later}"))["state"] == "ended")

        await until(is_stopped, "a wish is carried out at once, by a server that drives already", 30)
        assert server.stop() == 0
