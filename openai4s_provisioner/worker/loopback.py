"""The way to a kernel that can only do TCP: inside its sandbox, five unix sockets that lead to its five ports.

The sandbox has a network of its own, so the ports are nobody else's, and from outside only the unix sockets can be
reached, as with any other kernel. A connection that comes before the kernel listens waits for it. It refuses to look
at the bytes, and to connect to anything but the loopback.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Mapping

from ..transport.joint import Joint
from ..transport.loop import Loop, Timer

LOOPBACK = "127.0.0.1"
# Below the range that the system takes client ports from: a client that dials such a port before anybody listens may
# be given that very port for its own end, is then connected to itself, and the kernel cannot bind it any more.
FIRST_PORT = 20001

_BACKLOG = 64
_FIRST_RETRY_S = 0.01
_LONGEST_RETRY_S = 0.2


class LoopbackRelay:
    """`on_reached(port)` comes whenever a connection to the kernel stands."""

    def __init__(self, loop: Loop, ports: Mapping[str, int], on_reached: Callable[[int], object]) -> None:
        """`ports`: the path of each unix socket, and the port that it leads to. Raises OSError."""
        self._loop = loop
        self._on_reached = on_reached
        self._listening: list[socket.socket] = []
        self._waiting: set[_Attempt] = set()
        self._joints: set[Joint] = set()
        self._when_silent: Callable[[], object] | None = None
        for path, port in ports.items():
            self._listen(path, port)

    def drain(self, done: Callable[[], object]) -> None:
        """The kernel has ended: pass on what it said last, then call `done`. Takes no connection any more."""
        for listening in self._listening:
            self._loop.unwatch(listening.fileno())
            listening.close()
        self._listening.clear()
        for attempt in list(self._waiting):
            attempt.give_up()
        self._when_silent = done
        self._check_silent()

    def _listen(self, path: str, port: int) -> None:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        os.fchmod(listening.fileno(), 0o600)
        listening.bind(path)
        listening.listen(_BACKLOG)
        self._listening.append(listening)
        self._loop.watch(listening.fileno(), readable=lambda: self._accept(listening, port))

    def _accept(self, listening: socket.socket, port: int) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            peer, _ = listening.accept()
            attempt = _Attempt(self._loop, peer, port, self._attempt_over)
            self._waiting.add(attempt)
            attempt.start()

    def _attempt_over(self, attempt: _Attempt, kernel: socket.socket | None) -> None:
        self._waiting.discard(attempt)
        if kernel is None:
            attempt.peer.close()
            return
        self._joints.add(Joint(self._loop, attempt.peer, kernel, self._changed))
        self._on_reached(attempt.port)

    def _changed(self) -> None:
        self._joints = {joint for joint in self._joints if not joint.is_closed}
        self._check_silent()

    def _check_silent(self) -> None:
        done = self._when_silent
        if done is not None and all(joint.is_other_silent for joint in self._joints):
            self._when_silent = None
            done()


class _Attempt:
    """One connection on its way to the kernel's port: it tries until somebody listens there."""

    def __init__(
        self,
        loop: Loop,
        peer: socket.socket,
        port: int,
        over: Callable[[_Attempt, socket.socket | None], None],
    ) -> None:
        self.peer = peer
        self.port = port
        self._loop = loop
        self._over = over
        self._pause_s = _FIRST_RETRY_S
        self._retry: Timer | None = None
        self._dialling: socket.socket | None = None

    def start(self) -> None:
        self._retry = None
        kernel = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        kernel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._dialling = kernel
        code = kernel.connect_ex((LOOPBACK, self.port))
        if code == errno.EINPROGRESS:
            self._loop.watch(kernel.fileno(), writable=self._answered)
        else:
            self._tried(code)

    def give_up(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._hang_up()
        self._over(self, None)

    def _answered(self) -> None:
        if self._dialling is not None:
            self._loop.unwatch(self._dialling.fileno())
            self._tried(self._dialling.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def _tried(self, code: int) -> None:
        if code == 0:
            kernel, self._dialling = self._dialling, None
            self._over(self, kernel)
            return
        self._hang_up()
        self._retry = self._loop.call_later(self._pause_s, self.start)
        self._pause_s = min(_LONGEST_RETRY_S, self._pause_s * 1.5)

    def _hang_up(self) -> None:
        if self._dialling is not None:
            self._loop.unwatch(self._dialling.fileno())
            self._dialling.close()
            self._dialling = None
