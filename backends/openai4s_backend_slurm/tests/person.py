"""A person with a kernel manager, as a program: Jupyter's restarter, one session kernel, every event printed.

Reads one JSON object a line, ``{"id": n, "do": name, ...}``, and prints ``{"id": n, "answer": ...}`` or ``{"id": n,
"error": text}``; in between ``{"event": ...}`` for every change of the session. Run as an ordinary user by `people`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.ioloop.manager import AsyncIOLoopKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_events import EventLogger

from openai4s_provisioner.app import ControlPlane
from openai4s_provisioner.jupyter import kernelspecs
from openai4s_provisioner.jupyter.announcer import SCHEMA_ID
from openai4s_provisioner.jupyter.session_json import session_json
from openai4s_provisioner.jupyter.settings import OpenAI4S
from openai4s_provisioner.orchestration.store.sqlite import FILE_NAME
from openai4s_provisioner.parts import load_site_config
from openai4s_provisioner.person_desk import PersonDesk

_ANSWER_S = 60.0
REPOSITORY = Path(__file__).resolve().parents[3]


class _Manager(AsyncIOLoopKernelManager):
    event_logger: EventLogger | None = None  # as a Jupyter server's has


class Person:
    def __init__(self) -> None:
        config = load_site_config(OpenAI4S().frozen())
        self._profile = config.profiles[config.default_profile]
        kernel = kernelspecs.install(KernelSpecManager(), "python3", self._profile).name
        self._client: AsyncKernelClient | None = None
        self._printed: list[str] = []
        self._kernel = kernel
        self._manager = _Manager(kernel_name=kernel)
        self._manager.event_logger = EventLogger()
        self._manager.event_logger.add_listener(schema_id=SCHEMA_ID, listener=self._heard)
        self._starting: asyncio.Future[Any] | None = None

    async def _heard(self, logger: EventLogger, schema_id: str, data: Mapping[str, Any]) -> None:
        say({"event": dict(data)})

    async def prove(self) -> str:
        """Have it proven that sessions of the profile are isolated: "" or why not. Once proven, it costs nothing."""
        return str(
            (await self._of_backend(lambda backend: backend.isolates_session_credentials(self._profile))).sentence
        )

    async def found(self, token: str) -> str:
        """What the backend finds under a token: its handle, or ""."""
        handle = await self._of_backend(lambda backend: backend.find_by_token(token))
        return "" if handle is None else str(handle.value)

    async def _of_backend(self, ask: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        control = ControlPlane.shared(OpenAI4S().frozen())
        asking = ask(control._admitting.backends[self._profile.backend])
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asking, control._loop))

    async def start(self) -> str:
        """The kernel, without anybody connected to it."""
        self._starting = asyncio.ensure_future(self._manager.start_kernel(cwd=os.getcwd()))
        await self._starting
        return self._manager.kernel_id

    async def give_up(self) -> None:
        """Close the dialog while the kernel still waits."""
        assert self._starting is not None
        self._starting.cancel()
        await asyncio.wait([self._starting])

    async def connect(self) -> None:
        """What an open notebook does. While it lasts, what is lost is started again."""
        if self._client is not None:
            self._client.stop_channels()
        self._client = self._manager.client()
        self._client.start_channels()
        await self._client.wait_for_ready(timeout=_ANSWER_S)

    async def value(self, expression: str) -> str:
        assert self._client is not None
        reply = await self._client.execute_interactive(
            "", user_expressions={"v": expression}, timeout=_ANSWER_S, output_hook=lambda message: None
        )
        found = reply["content"]["user_expressions"]["v"]
        return str(found["data"]["text/plain"] if found["status"] == "ok" else found["ename"])

    async def run(self, number: int, code: str, timeout_s: float = _ANSWER_S) -> dict[str, Any]:
        """Execute to the end: how it ended, and what it printed, which is also said as it comes."""
        assert self._client is not None
        self._printed = printed = []

        def heard(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])
                say({"id": number, "printed": printed[-1]})

        reply = await self._client.execute_interactive(code, timeout=timeout_s, output_hook=heard)
        return {"status": reply["content"]["status"], "printed": "".join(printed)}

    async def printed(self) -> str:
        """What the cell that runs now, or ran last, has printed so far."""
        return "".join(self._printed)

    async def notebook(self, way: str) -> dict[str, Any]:
        """The bundled notebook in an ordinary kernel, then in a session: how what they say differs."""
        from checks.parts.notebook import Conditions, run_notebook
        from checks.parts.transcript import differences

        notebook = REPOSITORY / "demo" / "session.ipynb"
        expected, _, _ = await asyncio.to_thread(run_notebook, notebook, "python3", Path.cwd())
        met = None
        if way == "nbclient":
            conditions = Conditions(lambda text: None)
            actual, _, _ = await asyncio.to_thread(run_notebook, notebook, self._kernel, Path.cwd(), conditions)
            met = len(conditions.seconds)
        else:
            actual = await self._in_a_server(notebook)
        found = list(differences(expected, actual))
        return {"differences": found[:10], "messages": actual.messages, "conditions": met}

    async def serve(self) -> dict[str, Any]:
        """A kernel from its start to its shutdown in a Jupyter server: what was seen on the way."""
        from openai4s_backend_slurm.tests.served import served

        return await served(self._kernel, lambda change: say({"event": dict(change)}))

    async def _in_a_server(self, notebook: Path) -> Any:
        from checks.parts.server import running_server
        from checks.parts.ways import run_in_channels

        async with running_server(Path.cwd(), Path.cwd().parent / "server.log") as server:
            session = await server.open_session(self._kernel, "session.ipynb")
            async with server.channels(session["kernel"]["id"]) as channels:
                transcript = await run_in_channels(notebook, channels)
            gone = await server.ask("DELETE", f"api/sessions/{session['id']}")
            assert gone.code == 204, gone.body
            return transcript

    async def interrupt(self) -> None:
        await self._manager.interrupt_kernel()

    async def restart(self) -> None:
        await self._manager.restart_kernel()

    async def kernel_id(self) -> str:
        assert self._manager.provisioner is not None
        return str(self._manager.provisioner.kernel_id)

    async def shown(self) -> list[dict[str, Any]]:
        """What the REST interface says of all sessions, the newest first."""
        found = await asyncio.wrap_future(ControlPlane.shared(OpenAI4S().frozen()).ask(PersonDesk.overview))
        return [session_json(view, time.time(), str) for view in found.views]

    async def recorded(self) -> list[str]:
        """What is written down of all sessions: who did what, and why."""
        state_dir = OpenAI4S().frozen().state_dir
        with contextlib.closing(sqlite3.connect(f"file:{state_dir}/{FILE_NAME}?mode=ro", uri=True)) as state:
            return [" ".join(map(str, row)) for row in state.execute("SELECT kind, actor, reason, detail FROM event")]

    async def ends_at(self) -> float | None:
        """When the running job's time is over, as it is written down."""
        state_dir = OpenAI4S().frozen().state_dir
        with contextlib.closing(sqlite3.connect(f"file:{state_dir}/{FILE_NAME}?mode=ro", uri=True)) as state:
            found = state.execute("SELECT max(ends_at) FROM allocation WHERE ended_at IS NULL").fetchone()[0]
            return None if found is None else float(found)

    async def silent_for_s(self) -> float:
        """For how long a worker has had no connection; 0 while all have one."""
        state_dir = OpenAI4S().frozen().state_dir
        with contextlib.closing(sqlite3.connect(f"file:{state_dir}/{FILE_NAME}?mode=ro", uri=True)) as state:
            found = state.execute("SELECT min(link_since) FROM worker WHERE link <> 'connected'").fetchone()[0]
            return 0.0 if found is None else time.time() - float(found)

    async def alive(self) -> bool:
        return bool(await self._manager.is_alive())

    async def shut_down(self) -> None:
        if self._client is not None:
            self._client.stop_channels()
            self._client = None
        await self._manager.shutdown_kernel()


def say(line: Mapping[str, Any]) -> None:
    print(json.dumps(line), flush=True)


async def _obey(person: Person, order: dict[str, Any]) -> None:
    number, name = order.pop("id"), order.pop("do")
    if name == "run":
        order["number"] = number
    try:
        say({"id": number, "answer": await getattr(person, name)(**order)})
    except asyncio.CancelledError:
        say({"id": number, "error": "given up"})
    except Exception as error:
        say({"id": number, "error": f"{type(error).__name__}: {error}"})


async def _live() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    person = Person()
    tasks = set()
    while line := await reader.readline():
        task = asyncio.create_task(_obey(person, json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    with contextlib.suppress(Exception):
        await person.shut_down()


if __name__ == "__main__":
    sys.path.append(str(REPOSITORY))  # for the checks' own ways to run a notebook
    os.chdir(Path(sys.argv[1]))
    asyncio.run(_live())
