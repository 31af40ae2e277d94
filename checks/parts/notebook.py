"""Runs a notebook with nbclient and writes down every message, playing the front end of the notebook's comm.

The kernel manager is Jupyter's own; it only carries an event logger, as a Jupyter server's does, so that the changes
of a session can be heard.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.session import Session
from jupyter_events import EventLogger
from nbclient import NotebookClient

from openai4s_provisioner.orchestration.readiness import Condition

from .transcript import Transcript

SESSION_EVENTS = "https://events.openai4s.dev/session/v1"
COMM_TARGET = "openai4s.demo.echo"


def echo_of(session: Session, message: Mapping[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    """The front end's answer to a message of the notebook's comm: its bytes reversed."""
    content = {name: message["content"][name] for name in ("comm_id", "data")}
    return session.msg("comm_msg", content), [bytes(buffer)[::-1] for buffer in message["buffers"]]


class Conditions:
    """Hears a session's events and tells when each of the four conditions came true."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.seconds: dict[Condition, float] = {}
        self.events = EventLogger()
        self.events.add_listener(schema_id=SESSION_EVENTS, listener=self._heard)

    async def _heard(self, logger: EventLogger, schema_id: str, data: Mapping[str, Any]) -> None:
        for condition in list(Condition)[: data["met"]]:
            if condition not in self.seconds:
                before = max(self.seconds.values(), default=0.0)
                self.seconds[condition] = data["elapsed_s"]
                self._say(f"  {condition.value}: after {data['elapsed_s']:.2f} s ({data['elapsed_s'] - before:.2f} s)")


class WatchedKernelManager(AsyncKernelManager):
    """Jupyter's kernel manager with the event logger that a Jupyter server's has."""

    event_logger: EventLogger | None = None


class Echo:
    """The front end's half of the notebook's comm: sends every message back."""

    def __init__(self, client: NotebookClient) -> None:
        self._client = client

    def handle_msg(self, message: Mapping[str, Any]) -> None:
        kc = self._client.kc
        assert kc is not None
        answer, buffers = echo_of(kc.session, message)
        frames = kc.session.serialize(answer)
        # Through the asyncio socket itself: `session.send` would use up the wake-up that a waiting reader needs.
        self._sending = kc.shell_channel.socket.send_multipart(frames + buffers)


class RecordingClient(NotebookClient):
    """nbclient that writes down every message of every cell."""

    def __init__(self, nb: nbformat.NotebookNode, **options: Any) -> None:
        super().__init__(nb, **options)
        self.transcript = Transcript()
        self.comm_open_handlers[COMM_TARGET] = lambda opened: Echo(self)

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        self.transcript.add(cell_index, msg)
        return super().process_message(msg, cell, cell_index)


def run_notebook(
    path: Path, kernel_name: str, folder: Path, conditions: Conditions | None = None
) -> tuple[Transcript, float, nbformat.NotebookNode]:
    """Execute the notebook in `folder`. Returns what it said, the seconds it took, and the executed notebook."""
    notebook = nbformat.read(path, as_version=4)
    manager = WatchedKernelManager(kernel_name=kernel_name)
    manager.event_logger = conditions.events if conditions else None
    client = RecordingClient(
        notebook,
        km=manager,
        timeout=900,
        iopub_timeout=900,
        startup_timeout=180,
        resources={"metadata": {"path": str(folder)}},
    )
    started = time.monotonic()
    client.owns_km = True  # nbclient shuts the kernel down at the end, as it does with one it made
    client.execute()
    return client.transcript, time.monotonic() - started, notebook
