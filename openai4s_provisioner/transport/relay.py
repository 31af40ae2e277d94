"""Splices a connected stream socket and a tunnel stream: bytes both ways, each side held up by the other's slowness.

With a spool, the socket is read however slow the stream is, because a kernel's PUB socket throws messages away when
its reader stops. Half-closes pass through; a reset or an error on one side ends the other. Never looks at the bytes,
never connects, never retries.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections import deque
from collections.abc import Callable

from .loop import Loop
from .spool import Spool
from .stream import Stream

CHUNK = 64 * 1024
# More than a frame, so that the link always finds a full one; little, because it waits outside of every window.
HIGH_WATER = 2 * CHUNK

_log = logging.getLogger(__name__)


def splice(
    loop: Loop,
    stream: Stream,
    sock: socket.socket,
    spool: Spool | None = None,
    on_closed: Callable[[], object] | None = None,
) -> Splice:
    """Takes over `stream`, `sock` and `spool`, and closes them. `on_closed()` comes once, when all is over."""
    return Splice(loop, stream, sock, spool, on_closed)


class Splice:
    def __init__(
        self,
        loop: Loop,
        stream: Stream,
        sock: socket.socket,
        spool: Spool | None,
        on_closed: Callable[[], object] | None,
    ) -> None:
        self._loop = loop
        self._stream = stream
        self._socket = sock
        self._fd = sock.fileno()
        self._spool = spool
        self._on_closed = on_closed
        self._to_socket: deque[memoryview] = deque()
        self._socket_ended = False  # read to its end
        self._stream_ended = False  # the peer of the stream sends no more
        self._socket_shut = False  # we told the socket so, or it takes no more
        self._interest = (False, False)
        self.is_closed = False
        self.socket_left_first = False  # whoever is at the socket ended it; the stream had not ended yet
        sock.setblocking(False)
        stream.on_end = self._on_stream_end
        stream.on_reset = self._close
        stream.on_writable = self._feed_stream
        stream.on_data = self._on_stream_data
        if stream.is_over:
            loop.call_soon(self._close)
        else:
            self._watch()

    def close(self) -> None:
        """Ends both sides now."""
        self._stream.reset()
        self._close()

    # Socket to stream.

    def _on_readable(self) -> None:
        try:
            size = self._socket.recv_into(self._loop.scratch[:HIGH_WATER])
        except BlockingIOError:
            return
        except OSError:
            size = 0  # a socket that died has still said all that was read; it must reach the stream
        if not size:
            self._socket_ended = True
            self.socket_left_first = not self._stream_ended
        elif self._spool is not None:
            self._spool.append(self._loop.scratch[:size])
        else:
            self._stream.write(bytes(self._loop.scratch[:size]))
        self._feed_stream()

    def _feed_stream(self) -> None:
        """From the spool, as far as the stream takes it; and its end, once everything before it was written."""
        if self.is_closed:
            return
        spool = self._spool
        if spool is not None:
            try:
                while spool.size and self._stream.buffered < HIGH_WATER:
                    self._stream.write(spool.take(CHUNK))
            except OSError:
                _log.exception("what %s had spooled cannot be read back", self._stream.channel)
                self.close()
                return
        if self._socket_ended and (spool is None or not spool.size):
            self._stream.finish()
        self._settle()

    # Stream to socket.

    def _on_stream_data(self, data: bytes) -> None:
        self._to_socket.append(memoryview(data))
        if len(self._to_socket) == 1:
            self._on_writable()

    def _on_stream_end(self) -> None:
        self._stream_ended = True
        self._settle()

    def _on_writable(self) -> None:
        done = 0
        try:
            while self._to_socket:
                sent = self._socket.send(self._to_socket[0])
                done += sent
                if sent < len(self._to_socket[0]):
                    self._to_socket[0] = self._to_socket[0][sent:]
                else:
                    self._to_socket.popleft()
        except BlockingIOError:
            pass
        except OSError:
            done += self._give_up_writing()
        if done:
            self._stream.consume(done)
        self._settle()

    def _give_up_writing(self) -> int:
        """The socket takes no more. Reading goes on: a kernel that died may have left its last words."""
        thrown = sum(map(len, self._to_socket))
        self._to_socket.clear()
        self._socket_shut = True
        return thrown

    # Both.

    def _settle(self) -> None:
        """Passes on the end of the stream, closes when both directions have ended, and asks the loop for the rest."""
        if self.is_closed:
            return
        if self._stream_ended and not self._to_socket and not self._socket_shut:
            self._socket_shut = True
            with contextlib.suppress(OSError):  # the other end may have closed already; reading will tell
                self._socket.shutdown(socket.SHUT_WR)
        if self._stream_ended and self._socket_shut and self._socket_ended and not (self._spool and self._spool.size):
            self._close()
        else:
            self._watch()

    def _watch(self) -> None:
        spool = self._spool
        has_room = self._stream.buffered < HIGH_WATER if spool is None else not spool.is_full
        interest = (has_room and not self._socket_ended, bool(self._to_socket))
        if interest != self._interest:
            self._interest = interest
            self._loop.watch(
                self._fd,
                readable=self._on_readable if interest[0] else None,
                writable=self._on_writable if interest[1] else None,
            )

    def _close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.unwatch(self._fd)
        self._socket.close()
        self._to_socket.clear()
        if self._spool is not None:
            self._spool.close()
        if self._on_closed is not None:
            self._on_closed()
