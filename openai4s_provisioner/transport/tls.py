"""TLS 1.3 over a non-blocking socket, behind the same seam as a plain one: it has to wait by BlockingIOError.

Trust is one certificate's digest, compared before a byte of ours is sent: no authority and no clock is asked, since
the clocks of nodes are wrong. A handshake that fails says nothing to the peer, not even TLS's own alert, so that a
refusal here looks like every other. No time limit of its own, but a bound on what a peer may send before it is done.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import socket
import ssl

HANDSHAKE_BYTES = 64 * 1024  # what a peer may send before the handshake is done; a real one needs about 1 KiB
_CIPHER_BYTES = 64 * 1024
_PLAIN_BYTES = 64 * 1024  # encrypted at once, so what a slow peer makes us hold


class TlsFailed(ConnectionError):
    """The handshake did not come about. The text has nothing of what the peer sent."""


class CertificateMismatch(TlsFailed):
    """Somebody answers there who does not hold the certificate that we were told."""


class Progress(enum.Enum):
    DONE = "done"
    WANTS_READ = "wants read"
    WANTS_WRITE = "wants write"


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """For paths of PEM files. Raises OSError (ssl.SSLError included) when they cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # type: ignore[misc, unused-ignore]  # sessions of TLS are not resumed; ours are
    context.load_cert_chain(certificate, key)
    return context


def client_context() -> ssl.SSLContext:
    """Verifies nothing by itself: `TlsSocket` compares the digest."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class TlsSocket:
    """Call `shake` until it is DONE, waiting for what it wants in between; then use it like a socket."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, certificate_sha256: str | None = None) -> None:
        """A server's end without a digest, a client's with one. `sock` is non-blocking, and ours from now on."""
        self._sock = sock
        self._pinned = certificate_sha256
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=certificate_sha256 is None)
        self._cipher = memoryview(b"")  # encrypted, not taken by the socket yet
        self._unconfirmed = 0  # bytes that are in `_cipher` and that the caller was told to offer again
        self._allowance = HANDSHAKE_BYTES
        self._is_shaken = False
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def shake(self) -> Progress:
        """Go on with the handshake. Raises TlsFailed or OSError; nothing is sent to the peer then."""
        while not self._is_shaken:
            try:
                self._tls.do_handshake()
                self._check_certificate()
                self._is_shaken = True
            except ssl.SSLWantReadError:
                if not self._flush():
                    return Progress.WANTS_WRITE
                if not self._fill_for_handshake():
                    return Progress.WANTS_READ
            except ssl.SSLError as error:
                raise TlsFailed(f"no TLS handshake: {error.reason or 'the peer closed the connection'}") from None
        return Progress.DONE if self._flush() else Progress.WANTS_WRITE

    def recv(self, size: int) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(memoryview(buffer))])

    def recv_into(self, buffer: memoryview) -> int:
        """As much as is there. 0 when the peer has closed, with or without TLS's own goodbye: links count bytes."""
        done = 0
        while done < len(buffer):
            try:
                size = self._tls.read(len(buffer) - done, buffer[done:])  # type: ignore[arg-type, unused-ignore]
            except ssl.SSLWantReadError:
                if done:
                    break
                self._fill()
                continue
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                break
            if not size:
                break
            done += int(size)
        return done

    def send(self, data: memoryview) -> int:
        """How much of `data` went out. After a BlockingIOError the same bytes have to be offered again, as ever."""
        if not self._flush():
            raise BlockingIOError
        if not self._unconfirmed:
            self._unconfirmed = self._tls.write(data[:_PLAIN_BYTES])
            if not self._flush():
                raise BlockingIOError
        taken, self._unconfirmed = self._unconfirmed, 0
        return taken

    def _check_certificate(self) -> None:
        if self._pinned is None:
            return
        shown = hashlib.sha256(self._tls.getpeercert(binary_form=True) or b"").hexdigest()
        if not hmac.compare_digest(shown, self._pinned):
            raise CertificateMismatch("another certificate than ours: somebody else answers there")

    def _fill_for_handshake(self) -> bool:
        """False when nothing is there yet."""
        try:
            self._allowance -= self._fill()
        except BlockingIOError:
            return False
        if self._allowance < 0:
            raise TlsFailed("no TLS handshake: the peer sends and sends")
        return True

    def _fill(self) -> int:
        """Take what the socket has. Raises BlockingIOError when that is nothing."""
        data = self._sock.recv(_CIPHER_BYTES)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        return len(data)

    def _flush(self) -> bool:
        """True when nothing encrypted is left to send."""
        while True:
            if not self._cipher:
                if not self._outgoing.pending:
                    return True
                self._cipher = memoryview(self._outgoing.read())
            try:
                sent = self._sock.send(self._cipher)
            except BlockingIOError:
                return False
            self._cipher = self._cipher[sent:]
