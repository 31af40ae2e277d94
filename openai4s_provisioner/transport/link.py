"""A link: the tunnel's protocol on a socket that may be lost and replaced, and the streams that its owner sees.

Everything runs in the loop's thread. The socket is anything non-blocking with `fileno`, `recv_into`, `send` and
`close` that raises BlockingIOError when it has to wait, so TLS fits behind the same seam. The link never dials and
never authenticates: it is given a socket after the handshake, and says when it lost it.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any, Protocol

from ..wire.connection import Acknowledged, Connection, Event
from ..wire.errors import ProtocolError
from ..wire.mux import CHUNK, WINDOW, ControlReceived, DataReceived, StreamFinished, StreamOpened, StreamReset
from .loop import Callback, Loop, Timer
from .stream import Stream

PING_EVERY_S = 10.0
DEAD_AFTER_S = 30.0

# How much one visit may move before other descriptors get their turn.
_READS_PER_TURN = 4
_BYTES_PER_FLUSH = 1024 * 1024
# What is in the kernel's buffer can no longer be overtaken by an interrupt.
_KERNEL_BUFFER = 128 * 1024

_log = logging.getLogger(__name__)


class LinkSocket(Protocol):
    """What a link needs of a connected, non-blocking socket."""

    def fileno(self) -> int: ...
    def recv_into(self, buffer: memoryview, /) -> int: ...
    def send(self, data: memoryview, /) -> int: ...
    def close(self) -> None: ...


class LinkHandler(Protocol):
    """The owner's side of a link; called in the loop's thread."""

    def control_received(self, message: dict[str, Any], /) -> None: ...
    def stream_opened(self, stream: Stream, /) -> None: ...
    def link_lost(self, reason: str, /) -> None:
        """The socket is gone. `attach` resumes, unless the link `is_over`."""


class Link:
    def __init__(
        self,
        loop: Loop,
        handler: LinkHandler,
        *,
        opens_streams: bool,
        window: int = WINDOW,
        ping_s: float = PING_EVERY_S,
        dead_s: float = DEAD_AFTER_S,
    ) -> None:
        self.loop = loop
        self._handler = handler
        self._connection = Connection(opens_streams=opens_streams, window=window)
        self._mux = self._connection.mux
        self._streams: dict[int, Stream] = {}
        self._socket: LinkSocket | None = None
        self._fd = -1
        self._is_started = False  # the leftover of the handshake comes before anything the socket shows
        self._is_watching_write = False
        self._is_flush_scheduled = False
        self._ping_s = ping_s
        self._dead_turns = max(1, round(dead_s / ping_s))
        self._silent_turns = 0
        self._ping_timer: Timer | None = None
        self._deliveries: list[tuple[int | None, Callback]] = []
        self.is_over = False  # closed, or its peer broke the protocol: `attach` raises

    @property
    def received(self) -> int:
        """Bytes of the peer's stream received so far: what the resume handshake states."""
        return self._connection.received

    @property
    def is_attached(self) -> bool:
        return self._socket is not None

    # What the owner does.

    def attach(self, sock: LinkSocket, leftover: bytes = b"", peer_received: int = 0) -> None:
        """Goes on over `sock`; `leftover` is what was read behind the handshake's last line.

        Raises ProtocolError, and changes nothing, when `peer_received` is impossible or the link is over. A socket
        that was still attached is closed without a `link_lost`: the peer has given it up.
        """
        if self.is_over:
            raise ProtocolError("the link is over")
        self._connection.resume(peer_received)
        self._detach()
        if isinstance(sock, socket.socket) and sock.family == socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BUFFER)
        self._socket = sock
        self._fd = sock.fileno()
        self._silent_turns = 0
        self._ping_timer = self.loop.call_later(self._ping_s, self._ping)
        self.loop.call_soon(self._start, sock, leftover)

    def send_control(self, message: dict[str, Any]) -> bool:
        """Sends now or once attached, ahead of all stream data. False, and not taken, when too many wait already.

        Raises ValueError past 1 MiB of JSON.
        """
        taken = self._mux.send_control(message)
        self.schedule_flush()
        return taken

    def ask_for_life(self) -> None:
        """Ping now: a connection that stands answers at once, and so shows that it is worth something."""
        self._connection.ping()
        self.schedule_flush()

    def open_stream(self, channel: str) -> Stream:
        stream_id = self._mux.open(channel)
        self.schedule_flush()
        stream = self._streams[stream_id] = Stream(self, self._mux, stream_id, channel)
        return stream

    def when_delivered(self, callback: Callback) -> None:
        """Calls back once the peer has acknowledged everything accepted before this call. No time limit of its own."""
        self._deliveries.append((None, callback))
        self.schedule_flush()

    def close(self, reason: str) -> None:
        """Ends the link for good. Each stream's `on_reset` is called, `link_lost` is not."""
        if not self.is_over:
            _log.info("link closed: %s", reason)
            self._end()

    # What streams need.

    def schedule_flush(self) -> None:
        if self._is_started and not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self.loop.call_soon(self._flush)

    def forget_stream(self, stream_id: int) -> None:
        self._streams.pop(stream_id, None)

    # Receiving.

    def _start(self, sock: LinkSocket, leftover: bytes) -> None:
        if self._socket is not sock:
            return
        if leftover:
            self._receive(leftover)
        if self._socket is sock:
            self._is_started = True
            self._watch()
            self.loop.call_soon(self._read_on, sock)  # a TLS layer may hold bytes already
            self.schedule_flush()

    def _readable(self) -> None:
        sock = self._socket
        if sock is None:
            return
        for _ in range(_READS_PER_TURN):
            if not self._read_once(sock):
                return
        # Not left to the selector: a TLS layer may hold bytes that the descriptor no longer shows.
        self.loop.call_soon(self._read_on, sock)

    def _read_on(self, sock: LinkSocket) -> None:
        if self._socket is sock:
            self._readable()

    def _read_once(self, sock: LinkSocket) -> bool:
        """False when there is nothing to read now, or no socket any more."""
        try:
            size = sock.recv_into(self.loop.scratch)
        except BlockingIOError:
            return False
        except OSError as error:
            self._lose(f"reading failed: {error.strerror or error}")
            return False
        if not size:
            self._lose("the peer closed the connection")
            return False
        self._receive(self.loop.scratch[:size])
        return self._socket is sock

    def _receive(self, data: bytes | memoryview) -> None:
        self._silent_turns = 0
        try:
            for event in self._connection.receive(data):
                self._deliver(event)
                if self.is_over:
                    return
        except ProtocolError as error:
            self._end()
            self._tell(self._handler.link_lost, f"protocol error: {error}")
            return
        self.schedule_flush()

    def _deliver(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            self._streams[event.stream].got_data(event.data)
        elif isinstance(event, ControlReceived):
            self._tell(self._handler.control_received, event.message)
        elif isinstance(event, StreamOpened):
            stream = self._streams[event.stream] = Stream(self, self._mux, event.stream, event.channel)
            self._tell(self._handler.stream_opened, stream)
        elif isinstance(event, StreamFinished):
            self._streams[event.stream].got_end()
            self._forget_if_over(event.stream)
        elif isinstance(event, StreamReset):
            self._streams.pop(event.stream).got_reset()
        elif isinstance(event, Acknowledged):
            self._check_deliveries()

    def _tell(self, callback: Callable[[Any], None], argument: Any) -> None:
        """An owner that fails must not cost the events behind this one."""
        try:
            callback(argument)
        except Exception:
            _log.exception("the owner of a link failed in %s", callback.__name__)

    # Sending.

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        sock = self._socket
        if sock is None or not self._is_started:
            return
        try:
            must_wait = self._send_some(sock)
        except OSError as error:
            while self._read_once(sock):
                pass  # what the peer said before it closed still counts
            if self._socket is sock:
                self._lose(f"writing failed: {error.strerror or error}")
            return
        if must_wait != self._is_watching_write:
            self._is_watching_write = must_wait
            self._watch()
        self._notify_writers()
        self._check_deliveries()

    def _send_some(self, sock: LinkSocket) -> bool:
        """True when more waits for the socket to become writable."""
        outgoing = self._connection.outgoing
        budget = _BYTES_PER_FLUSH
        while budget > 0:
            self._connection.fill(CHUNK)
            data = outgoing.next_bytes()
            if not data:
                return False
            try:
                sent = sock.send(data)
            except BlockingIOError:
                return True
            outgoing.advance(sent)
            budget -= sent
        return True

    def _notify_writers(self) -> None:
        for stream_id in self._mux.take_progressed():
            stream = self._streams.get(stream_id)
            if stream is not None:
                stream.made_progress()
            self._forget_if_over(stream_id)

    def _forget_if_over(self, stream_id: int) -> None:
        if not self._mux.is_live(stream_id):
            self.forget_stream(stream_id)

    def _check_deliveries(self) -> None:
        if not self._deliveries:
            return
        outgoing = self._connection.outgoing
        waits, self._deliveries = self._deliveries, []
        for mark, callback in waits:
            if mark is None and self._mux.is_idle:
                mark = outgoing.produced
                self._connection.ping()  # its answer acknowledges
                self.schedule_flush()
            if mark is not None and outgoing.acknowledged >= mark:
                self.loop.call_soon(callback)
            else:
                self._deliveries.append((mark, callback))

    # The socket's life.

    def _watch(self) -> None:
        self.loop.watch(self._fd, readable=self._readable, writable=self._flush if self._is_watching_write else None)

    def _ping(self) -> None:
        """Counts its own turns instead of reading a clock: a suspended laptop must not find every link dead."""
        self._silent_turns += 1
        if self._silent_turns >= self._dead_turns:
            self._lose(f"the peer was silent for {self._dead_turns * self._ping_s:g} s")
            return
        self._connection.ping()
        self.schedule_flush()
        self._ping_timer = self.loop.call_later(self._ping_s, self._ping)

    def _lose(self, reason: str) -> None:
        self._detach()
        self._tell(self._handler.link_lost, reason)

    def _detach(self) -> None:
        if self._ping_timer is not None:
            self._ping_timer.cancel()
            self._ping_timer = None
        if self._socket is not None:
            self.loop.unwatch(self._fd)
            self._socket.close()
            self._socket = None
            self._is_started = False
            self._is_watching_write = False

    def _end(self) -> None:
        self.is_over = True
        self._detach()
        self._deliveries.clear()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.got_reset()
