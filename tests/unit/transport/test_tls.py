"""TLS behind the seam of a plain socket: whole whatever the peer's pace, and silent where a handshake fails."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner.gateway.certificate import Certificate, load_certificate
from openai4s_provisioner.transport.tls import (
    HANDSHAKE_BYTES,
    CertificateMismatch,
    Progress,
    TlsFailed,
    TlsSocket,
    client_context,
    server_context,
)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return load_certificate(tmp_path_factory.mktemp("state"))


class Pair:
    """A server's and a worker's end over a socket pair with small buffers."""

    def __init__(self, certificate: Certificate, digest: str | None = None) -> None:
        self.raw = socket.socketpair()
        for each in self.raw:
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.server = TlsSocket(self.raw[0], server_context(certificate.path, certificate.path))
        self.worker = TlsSocket(self.raw[1], client_context(), digest or certificate.sha256)

    def shake(self) -> None:
        for _ in range(100):
            if [self.worker.shake(), self.server.shake()] == [Progress.DONE] * 2:
                return
        raise AssertionError("no end of the handshake")

    def close(self) -> None:
        self.server.close()
        self.worker.close()


@pytest.fixture
def pair(certificate: Certificate) -> Iterator[Pair]:
    one = Pair(certificate)
    yield one
    one.close()


def test_both_ends_wait_by_blocking_error_and_lose_nothing(pair: Pair) -> None:
    pair.shake()
    chance = random.Random(7)
    sent, got, back = chance.randbytes(3_000_000), bytearray(), bytearray()
    offsets = [0, 0]
    buffer = memoryview(bytearray(300_000))
    while len(got) < len(sent) or len(back) < len(sent):
        for number, (writer, reader, into) in enumerate(
            [(pair.server, pair.worker, got), (pair.worker, pair.server, back)]
        ):
            with contextlib.suppress(BlockingIOError):
                offsets[number] += writer.send(memoryview(sent)[offsets[number] : offsets[number] + 100_000])
            try:
                size = reader.recv_into(buffer[: chance.choice([1, 100, 17_000, 300_000])])
                into += buffer[:size]
            except BlockingIOError:
                pass
    assert bytes(got) == sent
    assert bytes(back) == sent


def test_nothing_to_read_is_a_blocking_error_and_the_end_is_none(pair: Pair) -> None:
    pair.shake()
    with pytest.raises(BlockingIOError):
        pair.server.recv(10)
    pair.worker.send(memoryview(b"last words"))
    pair.worker.close()
    assert pair.server.recv(100) == b"last words"
    assert pair.server.recv(100) == b""
    assert pair.server.recv(100) == b""


def test_a_refused_send_is_offered_again_and_counted_once(pair: Pair) -> None:
    pair.shake()
    data = memoryview(os.urandom(200_000))

    def fill() -> None:
        for _ in range(1000):
            pair.server.send(data[:10_000])

    with pytest.raises(BlockingIOError):
        fill()
    before = pair.server._unconfirmed
    assert before > 0
    with pytest.raises(BlockingIOError):
        pair.server.send(data[:10_000])
    assert pair.server._unconfirmed == before


def test_another_certificate_is_refused_before_the_worker_says_anything(certificate: Certificate) -> None:
    pair = Pair(certificate, digest="0" * 64)
    assert pair.worker.shake() is Progress.WANTS_READ
    assert pair.server.shake() is Progress.WANTS_READ
    with pytest.raises(CertificateMismatch, match="another certificate than ours"):
        pair.worker.shake()
    with pytest.raises(BlockingIOError):
        pair.raw[0].recv(1)
    pair.close()


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", b"\x15\x03\x03\x00\x02\x02\x28"]
)
def test_garbage_ends_a_handshake_without_an_answer(pair: Pair, garbage: bytes) -> None:
    pair.raw[1].send(garbage)
    with pytest.raises(TlsFailed):
        pair.server.shake()
    with pytest.raises(BlockingIOError):
        pair.raw[1].recv(100)


def test_a_peer_that_leaves_in_the_middle_is_a_failed_handshake(pair: Pair) -> None:
    pair.worker.shake()
    pair.worker.close()

    def shake() -> None:
        for _ in range(3):
            pair.server.shake()

    with pytest.raises(OSError):  # noqa: PT011  # whatever the system says of it
        shake()


def test_a_peer_that_sends_and_sends_is_bounded(pair: Pair) -> None:
    """Whole records of a handshake message that never ends; each is legal by itself."""
    first = b"\x01\x01\x86\xa0"  # a ClientHello of 100,000 bytes begins
    record = b"\x16\x03\x01\x40\x00"
    stream = record + first + b"\x00" * 16380 + (record + b"\x00" * 16384) * 8
    sent = 0

    def send_and_shake() -> None:
        nonlocal sent
        while True:
            with contextlib.suppress(BlockingIOError):
                sent += pair.raw[1].send(stream[sent : sent + 2048])
            pair.server.shake()

    with pytest.raises(TlsFailed):
        send_and_shake()
    assert sent <= HANDSHAKE_BYTES + 10_000


def test_it_speaks_with_the_standard_library_s_own_sockets(certificate: Certificate) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    data = os.urandom(2_000_000)
    answer: list[bytes] = []

    def serve() -> None:
        context = server_context(certificate.path, certificate.path)
        peer, _ = listening.accept()
        with context.wrap_socket(peer, server_side=True) as wrapped:
            wrapped.sendall(data)
            answer.append(wrapped.recv(100))

    thread = threading.Thread(target=serve)
    thread.start()
    raw = socket.create_connection(listening.getsockname())
    raw.setblocking(False)
    worker = TlsSocket(raw, client_context(), certificate.sha256)
    got = bytearray()
    is_done = False
    while len(got) < len(data):
        try:
            is_done = is_done or worker.shake() is Progress.DONE
            if is_done:
                got += worker.recv(65536)
        except BlockingIOError:
            continue
    assert worker.send(memoryview(b"thanks")) == 6
    thread.join(10)
    worker.close()
    listening.close()
    assert (bytes(got), answer) == (data, [b"thanks"])


def test_only_tls_1_3_is_spoken(certificate: Certificate) -> None:
    for context in (server_context(certificate.path, certificate.path), client_context()):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3


def test_a_missing_certificate_is_an_error_of_the_system(tmp_path: Path) -> None:
    missing: Any = str(tmp_path / "none.pem")
    with pytest.raises(OSError):  # noqa: PT011
        server_context(missing, missing)
