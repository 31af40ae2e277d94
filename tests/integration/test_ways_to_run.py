"""The ways in which people run kernels: a Jupyter server with a browser, a script, papermill. Each with a session."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager, KernelManager

from checks.parts.server import Server, running_server

from .conftest import DEADLINE_S, SessionLab, processes_below

pytestmark = pytest.mark.anyio


async def _kernel(server: Server, kernel_id: str) -> dict[str, Any]:
    answer = await server.ask("GET", f"api/kernels/{kernel_id}")
    found: dict[str, Any] = json.loads(answer.body)
    return found


async def test_a_jupyter_server_runs_interrupts_restarts_and_shuts_down(
    place: Any, work: Path, session_kernel: str, no_process_left: Any, wait_until: Any
) -> None:
    async with running_server(work, place.root / "server.log") as server:
        session = await server.started_session(session_kernel, "a.ipynb")
        kernel_id = session["kernel"]["id"]
        async with server.channels(kernel_id) as channels:
            outputs: list[Any] = []
            reply = await channels.execute("x = input('name? '); print(x)", outputs.append, answer="Ada")
            assert reply["status"] == "ok"
            assert any(each["content"].get("text") == "Ada\n" for each in outputs), "stdin goes there and back"

            started = asyncio.Event()

            def heard(message: Any) -> None:
                if message["msg_type"] == "stream":
                    started.set()

            running = asyncio.ensure_future(
                channels.execute("import time; print('go', flush=True); time.sleep(1000)", heard)
            )
            await asyncio.wait_for(started.wait(), DEADLINE_S)
            assert (await server.ask("POST", f"api/kernels/{kernel_id}/interrupt")).code == 204
            assert (await asyncio.wait_for(running, DEADLINE_S))["ename"] == "KeyboardInterrupt"

            (worker,) = (p for p in processes_below(place.root, ".pyz worker ") if p.cmdline()[2].endswith(".pyz"))
            assert (await server.ask("POST", f"api/kernels/{kernel_id}/restart")).code == 200
            reply = await channels.execute("x")
            assert reply["ename"] == "NameError", "the same connection leads to the fresh kernel"
            assert worker.is_running(), "the worker is the same"
        assert (await server.ask("DELETE", f"api/sessions/{session['id']}")).code == 204
        wait_until(lambda: not processes_below(place.root, ".pyz worker "), "the session has gone", DEADLINE_S)


async def test_a_kernel_asked_for_without_a_folder_runs_in_the_servers_own(
    place: Any, work: Path, session_kernel: str, no_process_left: Any
) -> None:
    """As clients without notebooks ask, of a server that was started in another folder."""
    async with running_server(work, place.root / "server.log") as server:
        answer = await server.ask("POST", "api/kernels", {"name": session_kernel})
        assert answer.code == 201
        outputs: list[Any] = []
        async with server.channels(json.loads(answer.body)["id"]) as channels:
            await channels.execute("import os; print(os.getcwd())", outputs.append)
        assert any(each["content"].get("text") == f"{work}\n" for each in outputs)


async def test_a_server_that_stops_gives_its_sessions_back(
    place: Any, work: Path, session_kernel: str, no_process_left: Any
) -> None:
    async with running_server(work, place.root / "server.log") as server:
        await server.started_session(session_kernel, "a.ipynb")
        assert processes_below(place.root, ".pyz worker ")
        assert await asyncio.to_thread(server.stop) == 0
    no_process_left(deadline_s=5)
    assert list((place.root / "xdg").iterdir()) == []


@pytest.mark.parametrize(("option", "code"), [("True", 201), ("False", 500)], ids=["listed at once", "blocking"])
async def test_a_server_stops_after_a_start_that_was_refused(
    place: Any, work: Path, session_kernel: str, no_process_left: Any, option: str, code: int
) -> None:
    folder = Path(os.environ["JUPYTER_DATA_DIR"]) / "kernels" / "refused"
    folder.mkdir(parents=True)
    provisioner = {"provisioner_name": "openai4s-provisioner", "config": {"profile": "no such profile"}}
    spec = {"argv": ["x"], "display_name": "Refused", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps({**spec, "metadata": {"kernel_provisioner": provisioner}}))
    async with running_server(work, place.root / "server.log", f"--OpenAI4S.pending_kernels={option}") as server:
        start = server.started_session if option == "True" else server.open_session
        await start(session_kernel, "a.ipynb")
        assert (await server.ask("POST", "api/kernels", {"name": "refused"})).code == code
        assert await asyncio.to_thread(server.stop) == 0
    no_process_left(deadline_s=5)


async def test_a_refusal_is_what_the_person_reads(place: Any, work: Path, session_kernel: str) -> None:
    """JupyterLab shows the message of the failed request in its "Error Starting Kernel" dialog.

    Where sessions that wait are listed at once, it does so with the kernel's reason: see server/test_waiting.py.
    """
    site = place.root / "cluster.toml"
    site.write_text('default_profile = "other"\n[profiles.other]\nbackend = "local"\n')
    options = (f"--OpenAI4S.cluster_toml={site}", "--OpenAI4S.pending_kernels=False")
    async with running_server(work, place.root / "server.log", *options) as server:
        body = {"path": "a.ipynb", "name": "a", "type": "notebook", "kernel": {"name": session_kernel}}
        answer = await server.ask("POST", "api/sessions", body)
        assert answer.code == 500
        assert "There is no profile 'default'" in json.loads(answer.body)["message"]
        assert json.loads((await server.ask("GET", "api/sessions")).body) == []


def test_a_synchronous_kernel_manager_with_a_blocking_client(
    work: Path, session_kernel: str, control_planes: None
) -> None:
    manager = KernelManager(kernel_name=session_kernel)
    manager.start_kernel(cwd=str(work))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=DEADLINE_S)
    try:
        assert client.execute_interactive("assert 6 * 7 == 42", timeout=DEADLINE_S)["content"]["status"] == "ok"
        manager.restart_kernel()
        client.wait_for_ready(timeout=DEADLINE_S)
        assert client.execute_interactive("1 / 0", timeout=DEADLINE_S)["content"]["ename"] == "ZeroDivisionError"
        assert manager.is_alive()
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    assert not manager.is_alive()


def test_a_kernel_whose_channels_must_be_encrypted(work: Path, session_kernel: str, control_planes: None) -> None:
    manager = KernelManager(kernel_name=session_kernel, transport_encryption="required")
    manager.start_kernel(cwd=str(work))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=DEADLINE_S)
    try:
        assert client.execute_interactive("assert 6 * 7 == 42", timeout=DEADLINE_S)["content"]["status"] == "ok"
        connection = json.loads(Path(manager.connection_file).read_text())
        assert connection["curve_publickey"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


def test_papermill(work: Path, session_kernel: str) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print(6 * 7)")])
    nbformat.write(notebook, work / "in.ipynb")
    command = [sys.executable, "-m", "papermill", "in.ipynb", "out.ipynb", "-k", session_kernel, "--no-progress-bar"]
    subprocess.run(command, check=True, cwd=work)
    (cell,) = nbformat.read(work / "out.ipynb", as_version=4).cells
    assert cell.outputs[0].text == "42\n"


def test_a_program_without_a_configuration_of_its_own_finds_what_the_server_has(
    place: Any, work: Path, session_kernel: str
) -> None:
    folder, state = place.root / "etc", place.root / "state-of-the-server"
    folder.mkdir()
    (folder / "jupyter_server_config.py").write_text(f"c.OpenAI4S.state_dir = {str(state)!r}\n")
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")]), work / "in.ipynb")
    command = [sys.executable, "-m", "papermill", "in.ipynb", "out.ipynb", "-k", session_kernel, "--no-progress-bar"]
    subprocess.run(command, check=True, cwd=work, env={**os.environ, "JUPYTER_CONFIG_PATH": str(folder)})
    assert (state / "state.db").exists()


async def test_several_kernels_start_at_once(work: Path, session_kernel: str, control_planes: None) -> None:
    managers = [AsyncKernelManager(kernel_name=session_kernel) for _ in range(3)]
    await asyncio.gather(*(each.start_kernel(cwd=str(work)) for each in managers))
    assert await asyncio.gather(*(each.is_alive() for each in managers)) == [True] * 3
    await asyncio.gather(*(each.shutdown_kernel(now=True) for each in managers))


async def test_kernels_whose_ids_begin_alike_are_told_apart(
    work: Path, session_kernel: str, control_planes: None
) -> None:
    """An id need not be random: a caller may choose it."""
    managers = [AsyncKernelManager(kernel_name=session_kernel) for _ in range(2)]
    for number, each in enumerate(managers):
        await each.start_kernel(cwd=str(work), kernel_id=f"experiment/2026-{number}")
    clients = [each.client() for each in managers]
    for client in clients:
        client.start_channels()
        await client.wait_for_ready(timeout=DEADLINE_S)
        client.stop_channels()
    await asyncio.gather(*(each.shutdown_kernel(now=True) for each in managers))


OTHER_CLIENT = """
import sys
from jupyter_client.blocking import BlockingKernelClient
client = BlockingKernelClient(connection_file=sys.argv[1])
client.load_connection_file()
client.start_channels()
client.wait_for_ready(timeout=30)
for number in range(20):
    assert client.execute_interactive(f'assert {number} == {number}', timeout=30)['content']['status'] == 'ok'
client.stop_channels()
"""


async def test_a_blocked_jupyter_loop_stalls_no_session(lab: SessionLab) -> None:
    """The loop of this process is blocked for as long as another client works with the kernel."""
    await lab.start()
    command = [sys.executable, "-c", OTHER_CLIENT, lab.manager.connection_file]
    subprocess.run(command, check=True, timeout=60)  # noqa: ASYNC221  # blocking is the point
    assert await lab.value("6 * 7") == "42"
