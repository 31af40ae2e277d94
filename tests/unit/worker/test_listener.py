"""Which process listens on a port, from the system's own tables."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from openai4s_provisioner.worker.listener import port_listener_pid


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["tcp", "tcp6"])
def test_the_process_that_listens_on_a_port_is_found(family: int) -> None:
    with socket.socket(family) as listening:
        listening.bind(("", 0))
        listening.listen()
        port = listening.getsockname()[1]
        assert port_listener_pid(port) == os.getpid()
    assert port_listener_pid(port) is None


def test_of_several_that_share_it_the_eldest_is_meant() -> None:
    """A process that a kernel has started may have inherited its sockets."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.set_inheritable(True)
        child = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[listening.fileno()]
        )
        try:
            assert port_listener_pid(listening.getsockname()[1]) == min(os.getpid(), child.pid)
        finally:
            child.communicate(b"\n")


def test_a_connection_is_not_a_listener() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    client = socket.create_connection(("127.0.0.1", port))
    served, _ = listening.accept()
    listening.close()
    assert port_listener_pid(port) is None
    client.close()
    served.close()
