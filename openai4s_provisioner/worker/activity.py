"""Watches what a kernel publishes, over a connection of the worker's own, and reports when it starts and stops working.

So it needs no client, no browser and no server: a cell that runs while nobody listens is still seen. It always reads,
reports changes at most once a second, and says "unknown" whenever it cannot read (no socket yet, or an encrypted one).
It sends the kernel nothing but its subscription.
"""

from __future__ import annotations

import logging
import socket
from typing import Any, Callable, Optional

from ..transport.loop import Loop, Timer
from ..wire.errors import ProtocolError
from ..wire.executions import Executions
from ..wire.subscriber import HELLO, MessageReader, subscribe, unsubscribe

_log = logging.getLogger(__name__)
_FIRST_RETRY_S = 0.02
_LONGEST_RETRY_S = 0.2  # shorter than what a kernel needs from its sockets to its first answer
_LONGEST_PAUSE_S = 30.0  # after a connection that was hung up before it could be used
_AT_MOST_EVERY_S = 1.0

UNKNOWN, IDLE, BUSY = "unknown", "idle", "busy"

Report = Callable[[dict[str, Any]], None]
Connect = Callable[[], Optional[socket.socket]]


class ActivityWatch:
    """`connect` gives a non-blocking connection to the kernel's iopub socket, or None while there is none."""

    def __init__(self, loop: Loop, launch_id: str, connect: Connect, report: Report) -> None:
        self._loop = loop
        self._launch_id = launch_id
        self._connect = connect
        self._report = report
        self._socket: socket.socket | None = None
        self._reader = MessageReader()
        self._executions = Executions()
        self._has_subscribed = False
        self._is_narrow = False
        self._retry: Timer | None = None
        self._pause_s = _FIRST_RETRY_S
        self._rest: Timer | None = None
        self._reported = UNKNOWN
        self._began = False

    def start(self) -> None:
        self._retry = None
        self._socket = self._connect()
        if self._socket is None:
            self._retry = self._loop.call_later(self._pause_s, self.start)
            self._pause_s = min(_LONGEST_RETRY_S, self._pause_s * 1.5)
            return
        self._reader, self._executions, self._is_narrow = MessageReader(), Executions(), False
        self._has_subscribed = False
        self._loop.watch(self._socket.fileno(), readable=self._readable)
        self._send(HELLO)

    def close(self) -> None:
        """Report what was not reported yet, and read no more. Idempotent."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        if self._began:
            self._say()
        self._hang_up()
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _readable(self) -> None:
        if self._socket is None:
            return
        try:
            size = self._socket.recv_into(self._loop.scratch)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            self._lost()
            return
        try:
            for parts in self._reader.feed(self._loop.scratch[:size]):
                self._executions.heard(parts)
        except ProtocolError as error:
            _log.info("what the kernel does cannot be read: %s", error)
            self._hang_up()
        self._subscribe()
        self._changed()

    def _lost(self) -> None:
        """The kernel ends, which is reported elsewhere, has new sockets, or will not talk without encryption."""
        was_ready = self._reader.is_ready
        self._hang_up()
        self._changed()
        self._pause_s = _LONGEST_RETRY_S if was_ready else min(_LONGEST_PAUSE_S, self._pause_s * 2)
        self._retry = self._loop.call_later(self._pause_s, self.start)

    def _subscribe(self) -> None:
        """To everything, and once the kernel's topics are known, to no more than what matters: not to its output."""
        if self._reader.is_ready and not self._has_subscribed:
            self._has_subscribed = True
            self._send(subscribe(b""))
        topics = self._executions.narrow
        if topics and not self._is_narrow:
            self._is_narrow = True
            self._send(b"".join(map(subscribe, topics)) + unsubscribe(b""))

    def _send(self, data: bytes) -> None:
        """A few bytes into an empty socket: what does not fit at once is a peer that does not read."""
        if self._socket is None:
            return
        try:
            sent = self._socket.send(data)
        except OSError:
            sent = 0
        if sent < len(data):
            self._lost()

    @property
    def _doing(self) -> str:
        if self._socket is None or not self._reader.is_ready:
            return UNKNOWN
        return BUSY if self._executions.is_busy else IDLE

    def _changed(self) -> None:
        self._began = self._began or self._executions.began
        self._executions.began = False
        if self._rest is None and (self._began or self._doing != self._reported):
            self._say()
            self._rest = self._loop.call_later(_AT_MOST_EVERY_S, self._rested)

    def _rested(self) -> None:
        self._rest = None
        self._changed()

    def _say(self) -> None:
        self._reported = self._doing
        message = {"type": "activity", "launch_id": self._launch_id, "doing": self._reported, "began": self._began}
        self._began = False
        self._report(message)

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None
