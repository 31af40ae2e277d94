"""A session kernel in a person's own Jupyter server, used as JupyterLab uses it: REST, and a websocket for the kernel.

Run by `person`, as an ordinary user. It looks at nothing that the server does not say.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from checks.parts.server import Channels, Server, running_server

_LOOK_S = 0.2
Hear = Callable[[Mapping[str, Any]], None]


async def served(kernel_name: str, hear: Hear) -> dict[str, Any]:
    """From the wish for a kernel to its shutdown: what was seen on the way. `hear`: each change of the session."""
    async with running_server(Path.cwd(), Path.cwd().parent / "server.log") as server:
        watching = asyncio.create_task(_watch(server, hear))
        session = await server.started_session(kernel_name, "short.ipynb")
        kernel_id: str = session["kernel"]["id"]
        found: dict[str, Any] = {}
        async with server.channels(kernel_id) as channels:
            found["gpu"] = await _printed(channels, "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
            found["interrupted by"] = await _interrupted(server, channels, kernel_id)
            found["still there"] = await _printed(channels, "x = 1; print(x)")
        found["restarted"] = (await server.ask("POST", f"api/kernels/{kernel_id}/restart")).code
        async with server.channels(kernel_id) as channels:
            found["forgotten"] = await _printed(channels, "print('x' not in globals(), 6 * 7)")
        found["shut down"] = (await server.ask("DELETE", f"api/sessions/{session['id']}")).code
        watching.cancel()
        await asyncio.wait([watching])
        return found


async def _watch(server: Server, hear: Hear) -> None:
    last: dict[str, Any] = {}
    while True:
        answer = await server.ask("GET", "openai4s/sessions")
        for session in json.loads(answer.body)["sessions"] if answer.code == 200 else ():
            said = {name: session[name] for name in ("state", "sentence", "met")}
            if said != last:
                last = said
                hear(said)
        await asyncio.sleep(_LOOK_S)


async def _printed(channels: Channels, code: str) -> str:
    texts: list[str] = []

    def heard(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream":
            texts.append(message["content"]["text"])

    reply = await channels.execute(code, heard, timeout_s=60)
    assert reply["status"] == "ok", reply
    return "".join(texts).strip()


async def _interrupted(server: Server, channels: Channels, kernel_id: str) -> str:
    """What a cell that would sleep for long ends with."""
    started = asyncio.Event()
    cell = asyncio.create_task(channels.execute("import time; time.sleep(600)", started=started, timeout_s=60))
    await started.wait()
    answer = await server.ask("POST", f"api/kernels/{kernel_id}/interrupt")
    assert answer.code == 204, answer.body
    return str((await cell)["ename"])
