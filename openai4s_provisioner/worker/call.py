"""One attempt to reach the server at one place: connect, TLS where the network leads, handshake, under deadlines.

The certificate is compared before anything of ours is sent. It says what failed in words that name the cause, and
never what it holds; it tries once, and what to do next is the dialer's.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Callable

from ..transport.link import LinkSocket
from ..transport.loop import Loop
from ..wire.errors import ProtocolError
from ..wire.handshake import Hello, ProofWanted, Resume, Welcomed, WorkerHandshake
from .route import Target

if TYPE_CHECKING:
    from ..transport.tls import TlsSocket

CONNECT_S = 10.0  # a packet that is dropped is sent again after 1, 3 and 7 seconds
HANDSHAKE_S = 30.0
_READ_BYTES = 16384

Connected = Callable[[LinkSocket, Welcomed], None]


class Call:
    def __init__(
        self,
        loop: Loop,
        target: Target,
        certificate_sha256: str | None,
        saying: Hello | Resume,
        succeeded: Connected,
        failed: Callable[[str, bool], None],
    ) -> None:
        """`failed` gets the cause, and whether anything of `saying` was sent."""
        self._loop = loop
        self._target = target
        self._certificate_sha256 = certificate_sha256
        self._table = WorkerHandshake(saying)
        self._outgoing = self._table.opening
        self._succeeded = succeeded
        self._failed = failed
        self._was_sent = False
        self._is_over = False
        self._raw: socket.socket | None = None
        self._peer: socket.socket | TlsSocket | None = None

    def start(self) -> None:
        self._deadline = self._loop.call_later(HANDSHAKE_S, self._fail, f"no answer within {HANDSHAKE_S:.0f} s")
        self._connecting = self._loop.call_later(CONNECT_S, self._fail, _UNANSWERED)
        try:
            self._raw = raw = socket.socket(
                self._target.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            )
            error = raw.connect_ex(self._target.place)
        except OSError as refusal:
            error = refusal.errno or errno.EINVAL
        if error and error != errno.EINPROGRESS:
            self._loop.call_soon(self._fail, os.strerror(error))  # not now: whoever starts us has not stored us yet
        elif error:
            self._loop.watch(raw.fileno(), writable=self._connection_decided)
        else:
            self._loop.call_soon(self._connected)

    def cancel(self) -> None:
        peer = self._release()
        if peer is not None:
            peer.close()

    # ---- connecting

    def _connection_decided(self) -> None:
        assert self._raw is not None
        error = self._raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._fail(os.strerror(error))
        else:
            self._connected()

    def _connected(self) -> None:
        if self._is_over:
            return
        assert self._raw is not None
        self._connecting.cancel()
        if not self._target.is_network:
            self._peer = self._raw
            self._watch()
        elif self._certificate_sha256 is None:
            self._fail("no certificate to compare with was told")
        else:
            from ..transport.tls import TlsSocket, client_context  # a worker that needs no TLS loads none

            self._peer = tls = TlsSocket(self._raw, client_context(), self._certificate_sha256)
            self._shake(tls)

    def _shake(self, tls: TlsSocket) -> None:
        from ..transport.tls import Progress

        try:
            progress = tls.shake()
        except OSError as error:
            self._fail(error.strerror or str(error))
            return
        if progress is Progress.DONE:
            self._watch()
        elif progress is Progress.WANTS_WRITE:
            self._loop.watch(tls.fileno(), writable=lambda: self._shake(tls))
        else:
            self._loop.watch(tls.fileno(), readable=lambda: self._shake(tls))

    # ---- the handshake

    def _watch(self) -> None:
        assert self._peer is not None
        writable = self._writable if self._outgoing else None
        self._loop.watch(self._peer.fileno(), readable=self._readable, writable=writable)

    def _writable(self) -> None:
        assert self._peer is not None
        try:
            sent = self._peer.send(memoryview(self._outgoing))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(f"cannot send: {error.strerror}")
            return
        self._was_sent = True
        self._outgoing = self._outgoing[sent:]
        self._watch()

    def _readable(self) -> None:
        """Read on until nothing is there: what TLS holds already, the descriptor does not show."""
        while not self._is_over and self._read_once():
            pass

    def _read_once(self) -> bool:
        assert self._peer is not None
        try:
            data = self._peer.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._fail(f"cannot receive: {error.strerror}")
            return False
        if not data:
            self._fail("the server closed the connection without an answer")
            return False
        try:
            event = self._table.receive(data)
        except ProtocolError as error:
            self._fail(f"not an answer of ours: {error}")
            return False
        if isinstance(event, ProofWanted):
            self._outgoing += event.answer
            self._watch()
        elif isinstance(event, Welcomed):
            peer = self._release()
            assert peer is not None
            self._succeeded(peer, event)
        return True

    # ---- the end

    def _fail(self, cause: str) -> None:
        if self._is_over:
            return
        peer = self._release()
        if peer is not None:
            peer.close()
        shown = self._target.shown
        self._failed(f"{shown}: {cause}" if shown else cause, self._was_sent)

    def _release(self) -> socket.socket | TlsSocket | None:
        self._is_over = True
        self._deadline.cancel()
        self._connecting.cancel()
        peer = self._peer or self._raw
        self._peer = self._raw = None
        if peer is not None:
            self._loop.unwatch(peer.fileno())
        return peer


_UNANSWERED = f"no answer to the connection within {CONNECT_S:.0f} s; a firewall may drop it"
