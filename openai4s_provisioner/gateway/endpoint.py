"""One kernel launch as Jupyter sees it: five Unix sockets, each connection a stream to the kernel's own socket.

While there is no link, or the kernel is gone, new connections wait in the backlog instead of being taken and dropped:
a zmq client would come back ten times a second. A cut link keeps its connections; a gone one closes them.
"""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from ..transport.link import Link
from ..transport.loop import Loop
from ..transport.relay import Splice, splice
from ..wire.errors import ProtocolError
from .listener import UnixListener

PORTS: Mapping[str, int] = {"shell": 1, "iopub": 2, "stdin": 3, "control": 4, "hb": 5}
_BACKLOG = 64
_COMES_BACK_S = 2.0  # a zmq client whose connection was closed asks again at once, if it still is there


@dataclass(frozen=True)
class Endpoint:
    """For a connection file with ``transport: ipc``: the socket of a channel is ``<ip>-<port>``."""

    ip: str
    ports: Mapping[str, int]


class KernelEndpoint:
    """Bound when made; takes connections while `lead_to` has given it a link. All in the loop's thread."""

    def __init__(self, loop: Loop, ip: str, allocation_id: str, launch_id: str) -> None:
        self.ip = ip
        self.allocation_id = allocation_id
        self.launch_id = launch_id
        self._loop = loop
        self._link: Link | None = None
        self._is_kernel_gone = False
        self._connections: dict[Splice, str] = {}  # to the channel it is for
        self._shell_closed_at: float | None = None
        self._listeners: dict[str, UnixListener] = {}
        try:
            for channel, port in PORTS.items():
                self._listeners[channel] = UnixListener(loop, f"{ip}-{port}", _BACKLOG)
        except BaseException:
            self.close()
            raise

    @property
    def public(self) -> Endpoint:
        return Endpoint(self.ip, dict(PORTS))

    def lead_to(self, link: Link | None) -> None:
        """The link to the kernel's machine, connected or not; None closes every connection."""
        if link is not self._link:
            self._drop_connections()
        self._link = link
        for channel, listener in self._listeners.items():
            if link is None or self._is_kernel_gone:
                listener.pause()
            else:
                listener.start(functools.partial(self._accepted, channel))

    def kernel_gone(self) -> None:
        """What the kernel said last is on its way and ends by itself; nothing new can reach it."""
        self._is_kernel_gone = True
        self.lead_to(self._link)

    @property
    def has_client(self) -> bool:
        """Whether somebody is connected to the shell channel, or waits to be: watchers use the others alone.

        A kernel's end closes its clients' connections first; who asks then must not find them gone. A client that
        left by itself is gone.
        """
        if "shell" in self._connections.values():
            return True
        waiting = self._listeners.get("shell")
        closed_at = self._shell_closed_at
        comes_back = closed_at is not None and time.monotonic() - closed_at < _COMES_BACK_S
        return (waiting is not None and waiting.is_asked) or comes_back

    def close(self) -> None:
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        self._drop_connections()

    def _accepted(self, channel: str, peer: socket.socket) -> None:
        if self._link is None:
            peer.close()
            return
        try:
            stream = self._link.open_stream(f"{self.launch_id}/{channel}")
        except ProtocolError:  # more streams than a link carries
            peer.close()
            return
        connection = splice(self._loop, stream, peer, on_closed=lambda: self._closed(connection))
        self._connections[connection] = channel

    def _closed(self, connection: Splice) -> None:
        if self._connections.pop(connection, None) == "shell" and not connection.socket_left_first:
            self._shell_closed_at = time.monotonic()

    def _drop_connections(self) -> None:
        for connection in list(self._connections):
            connection.close()
