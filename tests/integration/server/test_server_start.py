"""What the extension does to a server: nothing while there is no session, one line when it is set up wrongly."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from checks.parts.place import Place
from checks.parts.server import Server

from .conftest import Queue, StartServer, sessions, shown, until, waits

pytestmark = pytest.mark.anyio
OFF = "--ServerApp.jpserver_extensions={'openai4s_provisioner': False}"


def held(server: Server, place: Place) -> dict[str, Any]:
    """What a server's process holds: threads, files and sockets by kind, ports, children, and files it made."""
    process = psutil.Process(server.process.pid)
    kinds = sorted(os.readlink(f"/proc/{process.pid}/fd/{each}").partition(":[")[0] for each in fds(process.pid))
    callers = (psutil.CONN_ESTABLISHED, psutil.CONN_CLOSE_WAIT)  # ours, whose last connections may still be closing
    sockets = [each for each in process.net_connections("all") if each.status not in callers]
    others = ("jpserver", "jupyter_cookie_secret", ".npm")  # what is made anew by every server, or other extensions
    files = {name for name in place.everything() if not any(each in name for each in others)}
    return {
        "threads": process.num_threads(),
        "open": Counter(kind for kind in kinds if not kind.startswith("/") and kind != "socket"),
        "sockets": Counter((str(each.family), str(each.status)) for each in sockets),
        "children": len(process.children()),
        "files": files,
    }


def fds(pid: int) -> list[str]:
    return [each for each in os.listdir(f"/proc/{pid}/fd") if os.path.lexists(f"/proc/{pid}/fd/{each}")]


async def test_a_server_without_a_session_holds_nothing_of_ours(
    place: Any, work: Path, session_kernel: str, start_server: StartServer
) -> None:
    without_us: dict[str, Any] = {}
    for options in ((OFF,), ()):  # in the same place: what the first one has made is there for the second
        async with start_server(*options) as server:
            assert (await server.ask("GET", "openai4s/sessions")).code == (404 if options else 200)
            if not options:
                assert (await shown(server, "profiles"))["offline"] is None
            kernel = json.loads((await server.ask("POST", "api/kernels", {"name": "python3"})).body)
            assert (await server.ask("DELETE", f"api/kernels/{kernel['id']}")).code == 204
            if options:
                without_us = held(server, place)
            else:  # what other extensions do at a start may still be going on
                await until(partial(holds_no_more, server, place, without_us), "a server with us holds nothing more")
            assert server.stop() == 0


async def holds_no_more(server: Server, place: Place, without_us: dict[str, Any]) -> bool:
    more = {what: found - without_us[what] for what, found in held(server, place).items()}
    return not any(value if not isinstance(value, int) else value > 0 for value in more.values())


SLOW = """
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
import asyncio

class SlowProvisioner(LocalProvisioner):
    async def pre_launch(self, **kwargs):
        await asyncio.sleep(2)
        return await super().pre_launch(**kwargs)
"""


async def test_other_kernels_start_and_block_as_without_us(
    place: Any, queue: Queue, start_server: StartServer, no_process_left: Any
) -> None:
    site = place.root / "site"
    (site / "slow.py").write_text(SLOW)
    points = site / "queueing-1.0.dist-info" / "entry_points.txt"
    points.write_text(f"{points.read_text()}[jupyter_client.kernel_provisioners]\nslow = slow:SlowProvisioner\n")
    folder = Path(os.environ["JUPYTER_DATA_DIR"]) / "kernels" / "slow"
    folder.mkdir(parents=True)
    argv = ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    stanza = {"kernel_provisioner": {"provisioner_name": "slow"}}
    spec = {"argv": argv, "display_name": "Slow", "language": "python", "metadata": stanza}
    (folder / "kernel.json").write_text(json.dumps(spec))
    async with start_server() as server:
        await server.open_session(queue.kernel, "a.ipynb")
        await until(lambda: waits(server), "a session is in the queue")
        listing = len(json.loads((await server.ask("GET", "api/kernels")).body))
        began = time.monotonic()
        starting = asyncio.ensure_future(server.ask("POST", "api/kernels", {"name": "slow"}))

        async def is_listed() -> bool:
            return len(json.loads((await server.ask("GET", "api/kernels")).body)) > listing

        while not starting.done():
            assert not await is_listed() or starting.done(), "it is listed once it has started, and not before"
            await asyncio.sleep(0.1)
        assert time.monotonic() - began > 2, "its start answers when it has started"
        kernel = json.loads(starting.result().body)
        async with server.channels(kernel["id"]) as channels:
            assert (await channels.execute("1+1"))["status"] == "ok"
        assert (await server.ask("DELETE", f"api/kernels/{kernel['id']}")).code == 204
        assert server.stop() == 0


WRONG = {
    "a wrong cluster.toml": ("[profiles.x]\ncpus = 0\n", (), "line 2: profiles.x.cpus = 0 is out of range"),
    "a wrong option of a backend": ("[profiles.x]\nwalrus = 1\n", (), "knows no key 'walrus'"),
    "a port that is none": ("", ("--OpenAI4S.worker_listen=nine thousand",), "nine thousand"),
    "an address without a port": ("", ("--OpenAI4S.worker_advertise=host",), "no port is open"),
}


@pytest.mark.parametrize(("toml", "options", "sentence"), WRONG.values(), ids=WRONG.keys())
async def test_a_wrong_setting_is_said_at_the_start_and_stops_no_server(
    place: Any,
    start_server: StartServer,
    monkeypatch: pytest.MonkeyPatch,
    toml: str,
    options: tuple[str, ...],
    sentence: str,
) -> None:
    file = place.root / "cluster.toml"
    file.write_text(toml)
    monkeypatch.setenv("OPENAI4S_CLUSTER_TOML", str(file))
    async with start_server(*options) as server:
        for path in ("sessions", "profiles"):
            assert sentence in (await shown(server, path))["offline"]
        lines = [line for line in (place.root / "server.log").read_text().splitlines() if sentence in line]
        assert len(lines) == 1
        assert "No session can be started here" in lines[0]
        kernel = await server.ask("POST", "api/kernels", {"name": "python3"})
        assert kernel.code == 201, "other kernels start"
        assert server.stop() == 0


async def test_a_server_looks_after_what_another_one_left(
    queue: Queue, start_server: StartServer, wait_until: Any, no_process_left: Any
) -> None:
    queue.open()
    async with start_server() as server:
        await server.started_session(queue.kernel, "a.ipynb")
        server.process.kill()
        server.process.wait()
    async with start_server() as server:  # nobody starts a kernel in it

        async def reason() -> Any:
            (left,) = await sessions(server)
            return left["reason"] and left["state"] == "ended" and left["reason"]["code"]

        assert await until(reason, "it is ended, and its place given back") == "SERVER_GONE"
        assert server.stop() == 0


def test_the_extension_is_enabled_by_installing_the_package(place: Any) -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "jupyter_server.extension.serverextension", "list"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = [line.strip() for line in (listed.stdout + listed.stderr).splitlines() if "openai4s_provisioner" in line]
    assert any("enabled" in line for line in lines), lines
    assert any("OK" in line for line in lines), lines


async def test_a_refused_start_is_lines_of_the_server_s_log_and_no_traceback(
    place: Place,
    session_kernel: str,
    start_server: StartServer,
    monkeypatch: pytest.MonkeyPatch,
    wait_until: Any,
) -> None:
    """With its sentence, whoever writes it; what goes wrong in a program keeps its traceback."""
    monkeypatch.setenv("PATH", str(place.root / "nothing is here"))
    async with start_server() as server:
        await server.ask("POST", "api/kernels", {"name": session_kernel})
        log = place.root / "server.log"
        told = "Error waiting for kernel manager ready"
        wait_until(lambda: told in log.read_text(), "Jupyter has said it, too", 20)
        assert "Traceback" not in log.read_text()
        lines = [line for line in log.read_text().splitlines() if "bubblewrap" in line]
        assert any("refused a request of" in line for line in lines)
        assert any(f"{told}: " in line for line in lines)
        assert all(line.startswith(("[W ", "[E ")) for line in lines), lines
        assert server.stop() == 0
