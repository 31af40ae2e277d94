"""A kernel for tests of the tunnel: five sockets that send back what they get. It has no process and no sandbox."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")


class KernelThatEchoes:
    """What a confined kernel offers a worker. `signals` and `stops` keep what it was asked."""

    listens = True

    def __init__(self, folder: str, launch: dict[str, Any] | None, on_event: Callable[[dict[str, Any]], None]) -> None:
        self.launch_id = str((launch or {}).get("launch_id", ""))
        self.signals: list[int] = []
        self.stops: list[float] = []
        self.is_closed = False
        self._folder = os.path.join(folder, self.launch_id)
        self._on_event = on_event
        self._listening: list[socket.socket] = []
        self._talking: list[socket.socket] = []

    def start(self) -> None:
        os.makedirs(self._folder, 0o700)
        for channel in CHANNELS if self.listens else ():
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(self.socket_path(channel))
            listening.listen()
            self._listening.append(listening)
            threading.Thread(target=self._serve, args=(listening,), daemon=True).start()
        self._on_event({"type": "kernel_started", "launch_id": self.launch_id, "pid": os.getpid()})

    def signal(self, signum: int) -> None:
        self.signals.append(signum)

    def stop(self, grace_s: float) -> None:
        self.stops.append(grace_s)
        self._hang_up()
        self._on_event(
            {"type": "kernel_exited", "launch_id": self.launch_id, "exit_code": None, "signal": 9, "tail": ""}
        )

    def socket_path(self, channel: str) -> str:
        return os.path.join(self._folder, channel)

    def close(self) -> None:
        self._hang_up()
        self.is_closed = True

    def _hang_up(self) -> None:
        for one in self._listening + self._talking:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._listening.clear()
        self._talking.clear()

    def _serve(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                talking, _ = listening.accept()
                self._talking.append(talking)
                threading.Thread(target=_echo, args=(talking,), daemon=True).start()


class KernelThatNeverListens(KernelThatEchoes):
    """Its process is there, its sockets never come."""

    listens = False


def _echo(talking: socket.socket) -> None:
    with contextlib.suppress(OSError), talking:
        while data := talking.recv(65536):
            talking.sendall(data)
