"""Where a program inside a sandbox asks for a task, or to be kept: one Unix socket in each kernel's own folder.

One line of JSON comes in and is passed to the server, which admits or refuses; what the task prints then goes straight
to whoever asked, as fast as they take it, and its end too. When the caller goes away, its task is cancelled. Nothing
that comes in here is trusted: it is bounded, and it starts nothing by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import struct
from typing import Any, Callable

from ..transport.loop import Loop

SOCKET_NAME = "run"  # in /run/openai4s, seen from inside; as short as the kernel's own sockets' names
OUTPUT, END = b"o", b"x"  # kinds of frames to the caller: kind, length, bytes
_LONGEST_LINE_BYTES = 256 * 1024
_MOST_CALLERS = 32
_AHEAD_BYTES = 256 * 1024  # of output that a caller has not taken yet
_READ_BYTES = 16 * 1024

Event = dict[str, Any]


class Caller:
    """One program that asked. `flow(True)` asks its task to hold its output, `flow(False)` to go on."""

    def __init__(self, loop: Loop, peer: socket.socket, launch_id: str, asked: Callable[[Caller, Event], None]) -> None:
        """`launch_id`: beside which kernel it runs."""
        self.launch_id = launch_id
        self.request_id = secrets.token_hex(8)
        self.flow: Callable[[bool], None] = _ignore
        self.gone: Callable[[], None] = _nothing
        self._loop = loop
        self._peer = peer
        self._asked = asked
        self._line = b""
        self._has_asked = False
        self._waiting = bytearray()
        self._is_last = False
        self._is_open = True
        peer.setblocking(False)
        self._watch()

    def feed(self, data: bytes) -> None:
        self._send(OUTPUT, data)
        if len(self._waiting) > _AHEAD_BYTES:
            self.flow(True)

    def end(self, **how: Any) -> None:
        """The last that it hears; closed once it has taken it."""
        self._is_last = True
        self._send(END, json.dumps(how).encode())

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.unwatch(self._peer.fileno())
            self._peer.close()

    def _send(self, kind: bytes, data: bytes) -> None:
        if self._is_open:
            self._waiting += kind + struct.pack("!I", len(data)) + data
            self._write()

    def _watch(self) -> None:
        writable = self._write if self._waiting else None
        self._loop.watch(self._peer.fileno(), readable=self._read, writable=writable)

    def _write(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: self._peer.send(self._waiting)]
        except BlockingIOError:
            pass
        except OSError:
            self._left()
            return
        if not self._waiting and self._is_last:
            self.close()
            return
        self._watch()
        if len(self._waiting) <= _AHEAD_BYTES // 2:
            self.flow(False)

    def _read(self) -> None:
        try:
            data = self._peer.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._left()
            return
        if self._has_asked:
            return
        self._line += data
        line, newline, _ = self._line.partition(b"\n")
        if newline:
            self._has_asked = True
            self._ask(line)
        elif len(self._line) > _LONGEST_LINE_BYTES:
            self._left()

    def _ask(self, line: bytes) -> None:
        try:
            asked = json.loads(line)
            request: Event = {"type": "keep_request"}
            if asked.get("keep") is not True:
                request = {
                    "type": "task_request",
                    "argv": [str(part) for part in asked["argv"]],
                    "cwd": str(asked["cwd"]),
                    "every_rank": asked.get("every_rank") is True,
                }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._left()
            return
        self._asked(self, request)

    def _left(self) -> None:
        self.close()
        self.gone()


class Door:
    """The sockets of all kernels of one worker. `emit` gets the requests to the server."""

    def __init__(self, loop: Loop, emit: Callable[[Event], None]) -> None:
        self._loop = loop
        self._emit = emit
        self._listeners: dict[str, socket.socket] = {}
        self._callers: dict[str, Caller] = {}  # that wait for an answer of the server
        self._inside: set[Caller] = set()

    def open(self, folder: str, launch_id: str) -> None:
        """Listen in a kernel's folder. A folder where that cannot be done has no door; the kernel does not need one."""
        for former in [each for each in self._listeners if not os.path.isdir(each)]:  # of kernels that have ended
            self.shut(former)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listener.bind(os.path.join(folder, SOCKET_NAME))
            listener.listen(8)
        except OSError:
            listener.close()
            return
        listener.setblocking(False)
        self._listeners[folder] = listener
        self._loop.watch(listener.fileno(), readable=lambda: self._arrived(listener, launch_id))

    def shut(self, folder: str) -> None:
        listener = self._listeners.pop(folder, None)
        if listener is not None:
            self._loop.unwatch(listener.fileno())
            listener.close()

    def take(self, request_id: str) -> Caller | None:
        """The caller whose request was admitted; None when it has left."""
        return self._callers.pop(request_id, None)

    def refused(self, request_id: str, sentence: str) -> None:
        caller = self._callers.pop(request_id, None)
        if caller is not None:
            caller.end(exit_code=None, signal=None, refused=sentence)

    def kept(self, request_id: str, sentence: str) -> None:
        """The server has kept the session that somebody in here asked it to keep."""
        caller = self._callers.pop(request_id, None)
        if caller is not None:
            caller.feed(f"{sentence}\n".encode())
            caller.end(exit_code=0, signal=None)

    def close(self) -> None:
        for folder in list(self._listeners):
            self.shut(folder)
        for caller in list(self._inside):
            caller.close()

    def _arrived(self, listener: socket.socket, launch_id: str) -> None:
        with contextlib.suppress(OSError):
            peer, _ = listener.accept()
            self._inside = {caller for caller in self._inside if caller._is_open}
            if len(self._inside) >= _MOST_CALLERS:
                peer.close()
                return
            self._inside.add(Caller(self._loop, peer, launch_id, self._asked))

    def _asked(self, caller: Caller, request: Event) -> None:
        self._callers[caller.request_id] = caller
        caller.gone = lambda: self._forget(caller)
        self._emit({**request, "request_id": caller.request_id, "launch_id": caller.launch_id})

    def _forget(self, caller: Caller) -> None:
        self._callers.pop(caller.request_id, None)


def _ignore(_: bool) -> None:
    return


def _nothing() -> None:
    return
