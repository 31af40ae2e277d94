"""A kernel that can only do TCP, in its sandbox: a network of its own, and five unix sockets that lead into it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from openai4s_provisioner.worker.confined import ConfinedKernel
from openai4s_provisioner.worker.listener import port_listener_pid
from openai4s_provisioner.worker.loopback import FIRST_PORT

# Listens where its connection file says that the shell is, takes one connection, and then does as it is told.
SERVER = """
import json, os, socket, sys, time
info = json.load(open(sys.argv[1]))
assert (info["transport"], info["ip"]) == ("tcp", "127.0.0.1"), info
time.sleep({delay})
listening = socket.create_server((info["ip"], info["shell_port"]))
peer, _ = listening.accept()
{then}
"""
ECHO = "while data := peer.recv(65536): peer.sendall(data)"

Dial = Callable[..., socket.socket]


def server(then: str, delay: float = 0) -> tuple[str, ...]:
    return (sys.executable, "-c", SERVER.format(then=then, delay=delay), "{connection_file}")


@pytest.fixture
def dial(node: Any) -> Iterator[Dial]:
    made: list[socket.socket] = []

    def connect(kernel: ConfinedKernel, channel: str = "shell") -> socket.socket:
        path = kernel.socket_path(channel)
        node.run_until(lambda: os.path.exists(path), "the kernel's sockets")
        client = socket.socket(socket.AF_UNIX)
        made.append(client)
        client.connect(path)
        client.setblocking(False)
        return client

    yield connect
    for client in made:
        client.close()


def start(node: Any, argv: tuple[str, ...]) -> ConfinedKernel:
    kernel: ConfinedKernel = node.start({**node.launch(argv), "transport": "tcp"})
    return kernel


def received(node: Any, client: socket.socket, size: int) -> bytes:
    got = bytearray()

    def more() -> bool:
        try:
            data = client.recv(1 << 20)
        except BlockingIOError:
            return False
        got.extend(data)
        return len(got) >= size or not data

    node.run_until(more, f"{size} bytes from the kernel")
    return bytes(got)


def test_it_is_isolated_like_any_other_and_cannot_be_reached_by_abstract_sockets_either(node: Any) -> None:
    start(node, server(ECHO))
    isolation = node.wait_for("isolation")
    assert isolation["ok"], isolation
    assert isolation["attacks"]["connect_abstract_socket"] == "stopped"
    assert set(isolation["attacks"].values()) == {"stopped"}


def test_a_connection_that_comes_before_the_kernel_listens_waits_for_it(node: Any, dial: Dial) -> None:
    client = dial(start(node, server(ECHO, delay=0.7)))
    client.send(b"are you there?")
    assert received(node, client, 14) == b"are you there?"


def test_its_ports_are_open_to_nobody_outside(node: Any, dial: Dial) -> None:
    client = dial(start(node, server(ECHO)))
    client.send(b"x")
    assert received(node, client, 1) == b"x"
    assert [port_listener_pid(port) for port in range(FIRST_PORT, FIRST_PORT + 5)] == [None] * 5
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", FIRST_PORT))


def test_it_reaches_nothing_outside(node: Any, dial: Dial) -> None:
    with socket.create_server(("127.0.0.1", 0)) as outside:
        port = outside.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        code = f'print("tried", socket.socket().connect_ex(("127.0.0.1", {port})))'
        dial(start(node, server(code)))
        assert node.wait_for("kernel_exited")["tail"] == "tried 111", "refused: its loopback is another one"


def test_what_it_said_last_arrives_although_it_has_ended(node: Any, dial: Dial) -> None:
    """More than the buffers between hold, so that most of it is still on its way when the kernel is gone."""
    client = dial(start(node, server("peer.sendall(bytes(3_000_000)); os._exit(3)")))
    assert len(received(node, client, 3_000_000)) == 3_000_000
    assert node.wait_for("kernel_exited")["exit_code"] == 3


def test_an_end_is_reported_in_time_although_nobody_reads_what_it_said(node: Any, dial: Dial) -> None:
    dial(start(node, server("peer.setblocking(False); peer.send(bytes(3_000_000)); os._exit(3)")))
    assert node.wait_for("kernel_exited", 10)["exit_code"] == 3


def test_the_pid_of_a_wrapped_kernel_is_the_real_ones(node: Any, dial: Dial) -> None:
    wrapper = node.root / "work" / "wrapper"
    wrapper.write_text('#!/bin/sh\n"$@"\nexit $?\n')
    wrapper.chmod(0o755)
    kernel = start(node, (str(wrapper), *server(ECHO)))
    started = node.wait_for("kernel_started")
    assert kernel.kernel_pid == started["pid"]
    client = dial(kernel)
    client.send(b"x")
    assert received(node, client, 1) == b"x"
    node.run_until(lambda: kernel.kernel_pid != started["pid"], "the inner has told who listens")
    assert psutil.Process(kernel.kernel_pid).cmdline()[0] == sys.executable
    assert psutil.Process(kernel.kernel_pid).ppid() == started["pid"]


def test_a_restart_finds_its_ports_free(node: Any, dial: Dial) -> None:
    for _ in range(2):
        kernel = start(node, server(ECHO))
        client = dial(kernel)
        client.send(b"x")
        assert received(node, client, 1) == b"x"
        kernel.close()
