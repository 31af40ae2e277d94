"""The gateway on the network: TLS, addresses tried in order, peers that prove nothing, several servers on one host.

Real sockets on loopback, IPv4 and IPv6.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner.gateway.certificate import load_certificate
from openai4s_provisioner.gateway.desk import LinkState
from openai4s_provisioner.gateway.limits import Limits
from openai4s_provisioner.gateway.listen_address import parse_advertise, parse_listen
from openai4s_provisioner.gateway.reception import Refusal
from openai4s_provisioner.gateway.worker_gateway import NetworkDoor, WorkerGateway
from openai4s_provisioner.orchestration.errors import ConfigError, StateError
from openai4s_provisioner.orchestration.models import Registration
from openai4s_provisioner.testing.front_desks import DeskThatAdmitsOnce, ObserverThatRemembers
from openai4s_provisioner.transport.tls import client_context
from openai4s_provisioner.wire.handshake import Hello, ProofWanted, Resume, Welcomed, WorkerHandshake

KEY = bytes(range(32))
ME = Registration("w", "alloc", 1, 0)
QUICK = Limits(handshake_s=0.6, unauthenticated_peers=8, reconnect_s=0.5, idle_tick_s=0.05)
WaitUntil = Callable[..., Any]


def free_ports(count: int = 1) -> int:
    """The first of `count` neighbouring ports that are free on both loopbacks just now."""
    for first in range(20000 + os.getpid() % 20000, 60000, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
                    trial = stack.enter_context(socket.socket(family))
                    trial.bind((host, port))
            return first
    raise AssertionError("no free ports")


class Opened:
    """A running gateway with a port, and how to dial it."""

    def __init__(self, root: Path, listen: str, advertise: tuple[str, ...] = (), limits: Limits = QUICK) -> None:
        self.observer = ObserverThatRemembers()
        self.desk = DeskThatAdmitsOnce(good=ME)
        self.certificate = load_certificate(root / "state")
        door = NetworkDoor(parse_listen(listen), tuple(map(parse_advertise, advertise)), self.certificate)
        self.gateway = WorkerGateway(root / "gw", self.desk, self.observer, limits, door)
        self.gateway.start()
        self.port = int(self.gateway.network_addresses[0].rpartition(":")[2])

    def dial(self, host: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection((host, self.port), 10)

    def dial_tls(self, host: str = "127.0.0.1") -> ssl.SSLSocket:
        return client_context().wrap_socket(self.dial(host))

    def refused(self) -> dict[Refusal, int]:
        return self.gateway.census().refused


Open = Callable[..., Opened]


@pytest.fixture
def opened(place: Any) -> Iterator[Open]:
    """`opened(listen, name="one")`: a running gateway with state of its own."""
    running: list[Opened] = []

    def open_one(listen: str = "", name: str = "one", **options: Any) -> Opened:
        root = place.root / name
        root.mkdir(exist_ok=True)
        one = Opened(root, listen or f"127.0.0.1:{free_ports()}", **options)
        running.append(one)
        return one

    yield open_one
    for one in running:
        one.gateway.stop()


def hello(credential: str = "good") -> Hello:
    return Hello(credential, KEY, "node", 1, "3.9.0")


def shake(peer: socket.socket, saying: Hello | Resume) -> Welcomed | None:
    """The worker's end of a handshake; None when the gateway closed without a word."""
    table = WorkerHandshake(saying)
    peer.sendall(table.opening)
    while data := peer.recv(65536):
        event = table.receive(data)
        if isinstance(event, ProofWanted):
            peer.sendall(event.answer)
        elif event is not None:
            return event
    return None


def heard(peer: socket.socket) -> bytes:
    """All that the gateway says until it closes."""
    said = b""
    with contextlib.suppress(ConnectionResetError, ssl.SSLEOFError):
        while data := peer.recv(65536):
            said += data
    return said


def test_a_worker_comes_in_over_tls_and_resumes(opened: Open) -> None:
    one = opened()
    with one.dial_tls() as peer:
        assert peer.version() == "TLSv1.3"
        shown = peer.getpeercert(binary_form=True) or b""
        assert hashlib.sha256(shown).hexdigest() == one.gateway.certificate_sha256
        welcome = shake(peer, hello())
        assert welcome is not None
    one.observer.wait_for(lambda told: told.detail == LinkState.RECONNECTING)
    with one.dial_tls() as peer:
        again = shake(peer, Resume("alloc", 0, 0, KEY))
        assert again is not None
        assert again.generation != welcome.generation


def test_without_a_setting_no_port_is_open(place: Any) -> None:
    gateway = WorkerGateway(place.root / "gw", DeskThatAdmitsOnce(), ObserverThatRemembers())
    gateway.start()
    try:
        listening = [line for line in Path("/proc/self/net/tcp").read_text().splitlines() if " 0A " in line]
        ours = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_there(fd)}
        assert not [line for line in listening if f"socket:[{line.split()[9]}]" in ours]
        assert gateway.network_addresses == ()
    finally:
        gateway.stop()


def _is_there(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def test_an_older_tls_is_refused(opened: Open) -> None:
    one = opened()
    context = client_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with one.dial() as plain, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(plain)
    assert one.refused() == {Refusal.NO_TLS: 1}


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", Refusal.NO_TLS),
        (WorkerHandshake(hello()).opening, Refusal.NO_TLS),
        (b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", Refusal.NO_TLS),
        (b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + b"x" * 16378, Refusal.NO_TLS),
        (bytes(range(256)) * 20, Refusal.NO_TLS),
        (b"\x00" * 100_000, Refusal.NO_TLS),
        (b"", Refusal.TOO_LATE),
        (b"\x16\x03\x01", Refusal.TOO_LATE),
    ],
)
def test_whoever_speaks_no_tls_is_closed_without_a_byte(opened: Open, sent: bytes, kind: Refusal) -> None:
    one = opened()
    with one.dial() as peer:
        with contextlib.suppress(ConnectionError):
            peer.sendall(sent)
        assert heard(peer) == b""
    assert one.refused() == {kind: 1}


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", Refusal.MALFORMED),
        (b"x" * 70000, Refusal.TOO_LONG),
        (WorkerHandshake(hello("forged")).opening, Refusal.CREDENTIAL),
        (WorkerHandshake(hello()).opening + b"early", Refusal.MALFORMED),
        (b"", Refusal.TOO_LATE),
        (b"{", Refusal.TOO_LATE),
    ],
)
def test_every_refusal_behind_tls_looks_alike(opened: Open, sent: bytes, kind: Refusal) -> None:
    one = opened()
    with one.dial_tls() as peer:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            peer.sendall(sent)
        assert heard(peer) == b""
    assert one.refused() == {kind: 1}
    assert one.desk.keys == {}


def test_tls_and_handshake_have_one_deadline_in_total(opened: Open) -> None:
    one = opened()
    started = time.monotonic()
    with one.dial() as plain:
        time.sleep(0.4)  # spent before TLS: it counts
        with client_context().wrap_socket(plain) as peer:
            peer.sendall(b"{")
            assert heard(peer) == b""
    assert time.monotonic() - started < QUICK.handshake_s + 0.35


def test_a_crowd_from_the_network_keeps_no_worker_of_this_machine_out(opened: Open, wait_until: WaitUntil) -> None:
    one = opened(limits=Limits(handshake_s=20, unauthenticated_peers=4))
    with contextlib.ExitStack() as crowd:
        for _ in range(4):
            crowd.enter_context(one.dial())
        wait_until(lambda: one.gateway.census().waiting == 4, "the crowd is in the hall")
        with one.dial() as late:
            assert heard(late) == b""
        assert one.gateway.census().over_limit == 1
        assert one.refused() == {}
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(one.gateway.address.removeprefix("unix:"))
            assert shake(peer, hello()) is not None


def test_a_line_larger_than_one_record_of_tls_is_read_whole(opened: Open) -> None:
    one = opened()
    with one.dial_tls() as peer:
        peer.sendall(WorkerHandshake(hello()).opening[:-1] + b" " * 40000)
        peer.sendall(b"\n")
        assert b'"ok"' in peer.recv(65536)


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_alone_listens_on_every_interface(opened: Open, host: str) -> None:
    one = opened(str(free_ports()))
    with one.dial_tls(host) as peer:
        assert shake(peer, hello()) is not None


def test_ipv6_alone(opened: Open) -> None:
    one = opened(f"[::1]:{free_ports()}")
    assert one.gateway.network_addresses == (f"tls:[::1]:{one.port}",)
    with one.dial_tls("::1") as peer:
        assert shake(peer, hello()) is not None
    with pytest.raises(ConnectionRefusedError):
        one.dial("127.0.0.1")


@pytest.mark.parametrize("host", ["127.0.0.1:", "[::1]:", ""])
def test_servers_share_a_range_and_the_first_free_port_is_taken_and_told(opened: Open, host: str) -> None:
    first = free_ports(3)
    three = [opened(f"{host}{first}-{first + 2}", name=name) for name in ("one", "two", "three")]
    assert [one.port for one in three] == [first, first + 1, first + 2]
    with pytest.raises(StateError, match=f"no port of {first} to {first + 2} is free .* Give a wider range"):
        opened(f"{host}{first}-{first + 2}", name="four")
    three[1].gateway.stop()
    assert opened(f"{host}{first}-{first + 2}", name="five").port == first + 1
    peer_host = "::1" if host.startswith("[") else "127.0.0.1"
    for one in (three[0], three[2]):
        with one.dial_tls(peer_host) as peer:
            assert shake(peer, hello()) is not None


def test_two_servers_that_race_for_a_range_get_a_port_each(opened: Open) -> None:
    first = free_ports(8)
    ready = threading.Barrier(8)
    got: list[Opened] = []

    def start(number: int) -> None:
        ready.wait(10)
        got.append(opened(f"127.0.0.1:{first}-{first + 7}", name=f"n{number}"))

    threads = [threading.Thread(target=start, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(one.port for one in got) == list(range(first, first + 8))


@pytest.mark.parametrize(
    ("listen", "why"),
    [
        ("203.0.113.77:9000", "203.0.113.77 is not an address of this machine. Name one that is"),
        ("[2001:db8::77]:9000", "2001:db8::77 is not an address of this machine"),
        ("no-such-host.invalid:9000", "which this machine cannot look up"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_refused_with_a_sentence(
    place: Any, opened: Open, listen: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        opened(listen)
    assert not (place.root / "one" / "gw").exists()


def test_a_privileged_port_is_refused_with_a_sentence(ordinary_user: Any) -> None:
    script = (
        "from openai4s_provisioner.gateway.network_listener import NetworkListener\n"
        "from openai4s_provisioner.gateway.listen_address import parse_listen\n"
        "from openai4s_provisioner.orchestration.errors import ConfigError\n"
        "from openai4s_provisioner.transport.loop import Loop\n"
        "try:\n    NetworkListener(Loop(), parse_listen('127.0.0.1:81'), 8)\n"
        "except ConfigError as error:\n    print(error)\n"
    )
    limit = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    if int(limit.read_text()) <= 81:
        script = "print('you may not listen on port 81')"  # this machine allows it to everybody
    said = ordinary_user.run([sys.executable, "-c", script])
    assert "you may not listen on port 81" in said.stdout, said.stderr


def test_a_doubtful_address_is_warned_of_at_the_start(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    opened()
    assert "Workers are told to dial 127.0.0.1" in caplog.text
    assert "which no other machine can reach" in caplog.text


def test_a_stop_closes_the_port_and_leaves_nothing(opened: Open) -> None:
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    one = opened(str(free_ports()))
    peer = one.dial_tls()
    waiting = one.dial()
    assert shake(peer, hello()) is not None
    one.gateway.stop()
    with pytest.raises(ConnectionRefusedError):
        one.dial()
    peer.close()
    waiting.close()
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_out_of_descriptors_the_port_goes_on_afterwards(
    opened: Open, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    one = opened()
    running = one.gateway._running
    assert running is not None
    assert running.network is not None
    (acceptor,) = running.network._acceptors
    real = acceptor._socket
    failures: list[int] = []

    class SocketWithoutDescriptors:
        def accept(self) -> Any:
            if len(failures) < 3:
                failures.append(1)
                raise OSError(errno.EMFILE, "Too many open files")
            return real.accept()

        def fileno(self) -> int:
            return real.fileno()

        def close(self) -> None:
            real.close()

    monkeypatch.setattr(acceptor, "_socket", SocketWithoutDescriptors())
    with one.dial_tls() as peer:
        assert shake(peer, hello()) is not None
    assert len(failures) == 3
