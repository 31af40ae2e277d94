"""What a worker sees of a real kernel in its sandbox: executions, floods of output, encrypted channels, the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from zmq import curve_keypair

from openai4s_provisioner.worker.activity import ActivityWatch
from openai4s_provisioner.worker.inner import CHANNELS
from openai4s_provisioner.worker.kernels import _connect

Started = tuple[ActivityWatch, list[dict[str, Any]], BlockingKernelClient]


@pytest.fixture
def watched(node: Any) -> Iterator[Any]:
    """A kernel, its watch with what it reported, and a client."""
    closing: list[Any] = []

    def start(**launch: Any) -> Started:
        kernel = node.start({**node.launch(), **launch})
        reports: list[dict[str, Any]] = []
        watch = ActivityWatch(node.loop, "launch-0", lambda: _connect(kernel.socket_path("iopub")), reports.append)
        watch.start()
        node.run_until(lambda: os.path.exists(kernel.socket_path("hb")), "the kernel's sockets")
        client = BlockingKernelClient()
        ports = {f"{name}_port": port for port, name in enumerate(CHANNELS, start=1)}
        curve = {name: value.encode() for name, value in launch.items() if name.startswith("curve")}
        ip = kernel.socket_path("shell").removesuffix("-1")
        info: Any = {"transport": "ipc", "ip": ip, "key": node.key, **ports, **curve}
        client.load_connection_info(info)
        client.start_channels()
        closing.append((watch, client))
        client.wait_for_ready(timeout=30)
        return watch, reports, client

    yield start
    for watch, client in closing:
        watch.close()
        client.stop_channels()


def doings(reports: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    return [(report["doing"], report["began"]) for report in reports]


def test_a_kernel_that_only_answers_questions_is_idle(node: Any, watched: Any) -> None:
    _, reports, client = watched()
    for _ in range(20):
        client.kernel_info(reply=True, timeout=30)
        client.execute("1+1", silent=True, reply=True, timeout=30)
    node.run_until(lambda: reports, "the first report")
    client.execute("x = 1", reply=True, timeout=30)
    node.run_until(lambda: len(reports) > 1, "the report of the execution")
    assert doings(reports)[0] == ("idle", False)
    assert all(began for _, began in doings(reports)[1:2])


def test_an_execution_is_seen_from_its_beginning_to_its_end_and_topics_are_narrowed(node: Any, watched: Any) -> None:
    watch, reports, client = watched()
    node.run_until(lambda: doings(reports) == [("idle", False)], "idle")
    client.execute("import time\nwhile not __import__('os').path.exists('go'): time.sleep(0.05)")
    node.run_until(lambda: doings(reports)[-1] == ("busy", True), "busy")
    assert watch._is_narrow, "the kernel's output need not come here"
    (node.root / "work" / "go").touch()
    node.run_until(lambda: doings(reports)[-1] == ("idle", False), "idle again")


def test_a_flood_of_output_does_not_hide_the_end_of_its_cell(node: Any, watched: Any) -> None:
    _, reports, client = watched()
    node.run_until(lambda: reports, "the first report")
    client.execute("for i in range(20000): display({'text/plain': 'x' * 200}, raw=True)")
    node.run_until(lambda: ("busy", True) in doings(reports), "busy")
    node.run_until(lambda: doings(reports)[-1][0] == "idle", "idle, after the flood", 90)


def test_many_short_executions_are_few_reports(node: Any, watched: Any) -> None:
    _, reports, client = watched()
    node.run_until(lambda: reports, "the first report")
    started = node.loop.now()
    for number in range(100):
        client.execute(f"x = {number}", reply=True, timeout=30)
        node.loop.call_later(0, int)
        node.loop._turn()
    node.run_until(lambda: doings(reports)[-1][0] == "idle" and len(reports) > 1, "idle")
    assert len(reports) <= 3 + (node.loop.now() - started)


def test_what_an_encrypted_kernel_does_is_unknown(node: Any, watched: Any) -> None:
    public, secret = (part.decode() for part in curve_keypair())
    watch, reports, client = watched(curve_publickey=public, curve_secretkey=secret)
    client.execute("x = 1", reply=True, timeout=30)
    node.run_until(lambda: watch._pause_s > 1 and watch._socket is None, "the watch tries more and more rarely")
    assert reports == []


def test_a_kernel_that_ends_is_no_longer_known(node: Any, watched: Any) -> None:
    _, reports, client = watched()
    node.run_until(lambda: doings(reports) == [("idle", False)], "idle")
    client.execute("import os; os._exit(0)")
    node.run_until(lambda: doings(reports)[-1][0] == "unknown", "unknown")
