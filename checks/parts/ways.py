"""The other ways a person runs a notebook: a synchronous kernel manager, papermill, and a Jupyter server.

Each plays the notebook's front end where it can, and gives back what the notebook said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nbformat
import papermill
from jupyter_client.manager import KernelManager

from .notebook import echo_of
from .server import Channels
from .transcript import Transcript, normalised


def code_cells(notebook: Path) -> Iterator[tuple[int, str]]:
    for index, cell in enumerate(nbformat.read(notebook, as_version=4).cells):
        if cell.cell_type == "code":
            yield index, cell.source


def run_synchronously(notebook: Path, kernel_name: str, folder: Path) -> tuple[Transcript, str]:
    """A `KernelManager` and its blocking client. Returns the transcript and what an `input()` answered."""
    manager = KernelManager(kernel_name=kernel_name)
    manager.start_kernel(cwd=str(folder))
    client = manager.blocking_client()
    client.start_channels()
    transcript = Transcript()
    try:
        client.wait_for_ready(timeout=180)
        for index, source in code_cells(notebook):

            def heard(message: dict[str, Any], index: int = index) -> None:
                transcript.add(index, message)
                if message["msg_type"] == "comm_msg":
                    answer, buffers = echo_of(client.session, message)
                    client.session.send(client.shell_channel.socket, answer, buffers=buffers)

            client.execute_interactive(source, output_hook=heard, allow_stdin=False, timeout=600)
        said = _ask_a_question(client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    return transcript, said


def _ask_a_question(client: Any) -> str:
    said: list[str] = []

    def heard(message: Mapping[str, Any]) -> None:
        if message["msg_type"] == "stream":
            said.append(message["content"]["text"])

    client.execute_interactive(
        "print('hello', input('name? '))",
        allow_stdin=True,
        output_hook=heard,
        stdin_hook=lambda message: client.input("blocking client"),
        timeout=60,
    )
    return "".join(said).strip()


async def run_in_channels(notebook: Path, channels: Channels) -> Transcript:
    """Every code cell, over a kernel's websocket."""
    transcript = Transcript()
    for index, source in code_cells(notebook):

        def heard(message: dict[str, Any], index: int = index) -> Any:
            transcript.add(index, message)
            if message["msg_type"] == "comm_msg":
                answer, buffers = echo_of(channels.session, message)
                return channels.send("shell", answer, buffers)
            return None

        await channels.execute(source, heard)
    return transcript


def run_papermill(notebook: Path, kernel_name: str, folder: Path, output: Path) -> tuple[str, list[tuple[int, str]]]:
    """papermill. Returns the error it ended with and every output of the notebook it wrote, made comparable."""
    ending = ""
    try:
        # Its clients wait four seconds for the output of a finished cell; a slow reader of 100,000 needs more.
        papermill.execute_notebook(
            notebook,
            output,
            kernel_name=kernel_name,
            cwd=folder,
            progress_bar=False,
            iopub_timeout=900,
            start_timeout=180,
        )
    except papermill.PapermillExecutionError as error:
        ending = f"{error.ename} in cell {error.cell_index}"
    outputs = []
    for index, cell in enumerate(nbformat.read(output, as_version=4).cells):
        outputs += [(index, normalised(repr(sorted(one.items())))) for one in cell.get("outputs", ())]
    return ending, outputs
