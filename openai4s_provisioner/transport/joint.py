"""Joins two connected sockets: bytes both ways, each side held up by the other's slowness.

Half-closes pass through; when one side takes no more, the other direction still runs to its end, because a process
that died may have left its last words. Never looks at the bytes, connects nothing, keeps one chunk for each direction.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from .loop import Loop

CHUNK = 128 * 1024


class Joint:
    """Takes over both sockets, and closes them. `changed()` comes after every end of a direction, and at the close."""

    def __init__(
        self, loop: Loop, one: socket.socket, other: socket.socket, changed: Callable[[], object] = lambda: None
    ) -> None:
        self._loop = loop
        self._changed = changed
        self._there = _Flow(one, other)
        self._back = _Flow(other, one)
        self._interest: dict[int, tuple[bool, bool]] = {}
        self.is_closed = False
        for end in (one, other):
            end.setblocking(False)
        self._settle()

    @property
    def is_other_silent(self) -> bool:
        """Whether everything that `other` had to say has been passed on."""
        return self.is_closed or self._back.is_over

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        for end in (self._there.source, self._back.source):
            self._loop.unwatch(end.fileno())
            end.close()
        self._changed()

    def _readable(self, flow: _Flow) -> None:
        flow.read(self._loop.scratch)
        self._settle()

    def _writable(self, flow: _Flow) -> None:
        flow.write()
        self._settle()

    def _settle(self) -> None:
        """Passes ends on, closes when both directions are over, and asks the loop for what can go on."""
        if self.is_closed:
            return
        ended = [flow for flow in (self._there, self._back) if flow.pass_end_on()]
        if self._there.is_over and self._back.is_over:
            self.close()
            return
        for flow, opposite in ((self._there, self._back), (self._back, self._there)):
            self._watch(flow, opposite)
        if ended:
            self._changed()

    def _watch(self, flow: _Flow, opposite: _Flow) -> None:
        """`flow` reads from the socket that `opposite` writes to."""
        fd = flow.source.fileno()
        interest = (flow.wants_to_read, bool(opposite.pending))
        if self._interest.get(fd, (False, False)) != interest:
            self._interest[fd] = interest
            self._loop.watch(
                fd,
                readable=(lambda: self._readable(flow)) if interest[0] else None,
                writable=(lambda: self._writable(opposite)) if interest[1] else None,
            )


class _Flow:
    """One direction."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.pending = memoryview(b"")
        self.is_over = False
        self._sink = sink
        self._has_ended = False

    @property
    def wants_to_read(self) -> bool:
        return not self._has_ended and not self.pending

    def read(self, scratch: memoryview) -> None:
        try:
            size = self.source.recv_into(scratch[:CHUNK])
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if size:
            self.pending = memoryview(bytes(scratch[:size]))
            self.write()
        self._has_ended = self._has_ended or not size

    def write(self) -> None:
        try:
            while self.pending:
                self.pending = self.pending[self._sink.send(self.pending) :]
        except BlockingIOError:
            return
        except OSError:  # nobody takes it any more, so there is no point in reading more
            self.pending = memoryview(b"")
            self._has_ended = True

    def pass_end_on(self) -> bool:
        """True once: when the source has ended and everything before that was written."""
        if self.is_over or not self._has_ended or self.pending:
            return False
        self.is_over = True
        with contextlib.suppress(OSError):  # the sink may be gone already
            self._sink.shutdown(socket.SHUT_WR)
        return True
