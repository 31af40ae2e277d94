"""A worker finds its server: addresses in order, each failure named, and a server that has moved is found again."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checks.parts.place import REPOSITORY
from openai4s_provisioner.gateway.certificate import load_certificate
from openai4s_provisioner.gateway.desk import LinkState
from openai4s_provisioner.gateway.limits import Limits
from openai4s_provisioner.gateway.listen_address import parse_listen
from openai4s_provisioner.gateway.network_listener import NetworkListener
from openai4s_provisioner.gateway.worker_gateway import NetworkDoor, WorkerGateway
from openai4s_provisioner.orchestration import address_keeper
from openai4s_provisioner.orchestration.models import Registration
from openai4s_provisioner.orchestration.way_record import failed_ways
from openai4s_provisioner.orchestration.ways_in import ADDRESS_RECORD, address_record
from openai4s_provisioner.testing.echo_kernel import KernelThatEchoes
from openai4s_provisioner.testing.front_desks import DeskThatAdmitsOnce, ObserverThatRemembers
from openai4s_provisioner.transport.loop import Loop
from openai4s_provisioner.worker import attempt as attempt_module
from openai4s_provisioner.worker import call, route
from openai4s_provisioner.worker.attempt import take_attempt
from openai4s_provisioner.worker.exit_codes import ExitCode
from openai4s_provisioner.worker.worker import Worker

ME = Registration("w", "alloc", 1, 0)
WaitUntil = Callable[..., Any]


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
        trial.bind((host, 0))
        return int(trial.getsockname()[1])


class Place:
    """A gateway with a port, and workers of this process that dial it; everything stopped at the end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.certificate = load_certificate(root / "state")
        self.desk = DeskThatAdmitsOnce(good=ME)
        self.observer = ObserverThatRemembers()
        self._gateways: list[WorkerGateway] = []
        self._workers: list[tuple[Worker, Loop, threading.Thread]] = []
        self.exit_codes: list[int] = []

    def gateway(self, listen: str = "", limits: Limits | None = None) -> WorkerGateway:
        door = NetworkDoor(parse_listen(listen or f"127.0.0.1:{free_port()}"), (), self.certificate)
        one = WorkerGateway(self.root / f"gw{len(self._gateways)}", self.desk, self.observer, limits, door)
        self._gateways.append(one)
        one.start()
        return one

    def worker(self, *addresses: str, digest: str | None = None, grace_s: float = 20) -> Path:
        """Start one; returns its attempt's folder."""
        folder = self.root / f"worker{len(self._workers)}"
        folder.mkdir(mode=0o700)
        self._write_attempt(folder, list(addresses), digest or self.certificate.sha256, grace_s)
        loop = Loop()
        worker = Worker(
            loop,
            take_attempt(str(folder), 0),
            lambda launch, on_event: KernelThatEchoes(str(folder), launch, on_event),
            str(folder),
        )
        thread = threading.Thread(target=lambda: self.exit_codes.append(worker.run()))
        thread.start()
        self._workers.append((worker, loop, thread))
        return folder

    def dialled(self, count: int = 1) -> dict[str, Any]:
        """The `count`th report of the way."""
        self.observer.wait_for(lambda _: len(self.observer.messages("dialled")) >= count)
        return dict(self.observer.messages("dialled")[count - 1])

    def join_workers(self) -> None:
        for _, _, thread in self._workers:
            thread.join(20)
            assert not thread.is_alive()

    def close(self) -> None:
        for worker, loop, thread in self._workers:
            if thread.is_alive():
                loop.call_soon_threadsafe(worker.end, "test over")
        self.join_workers()
        for one in self._gateways:
            one.stop()

    def _write_attempt(self, folder: Path, addresses: list[str], digest: str, grace_s: float) -> None:
        content = {
            "version": 1,
            "workload_id": "w",
            "allocation_id": "alloc",
            "epoch": 1,
            "rank": 0,
            "ranks": 1,
            "credential": "good",
            "addresses": addresses,
            "certificate_sha256": digest,
            "workspace": {"path": "/", "nonce_name": "n"},
            "sandbox": {"workspace": "/"},
            "launch": {"launch_id": "first", "argv": ["kernel"], "env": {}, "cwd": "/", "key": "k"},
            "server_grace_s": grace_s,
        }
        with os.fdopen(os.open(folder / "rank-0.json", os.O_WRONLY | os.O_CREAT, 0o600), "w") as stream:
            json.dump(content, stream)


@pytest.fixture
def net(place: Any) -> Iterator[Place]:
    one = Place(place.root)
    yield one
    one.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_kernel_is_reached_through_tls_and_megabytes_come_unchanged(net: Place, host: str) -> None:
    gateway = net.gateway(f"{host}:{free_port(host.strip('[]'))}")
    net.worker(*gateway.network_addresses)
    endpoint = gateway.open_endpoint("alloc", "first", "k")
    data = os.urandom(1 << 20) * 24
    for channel in ("shell", "iopub"):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(20)
            peer.connect(f"{endpoint.ip}-{endpoint.ports[channel]}")
            sender = threading.Thread(target=peer.sendall, args=(data,))
            sender.start()
            back = bytearray()
            while len(back) < len(data):
                back += peer.recv(1 << 20)
            sender.join()
        assert back == data
    assert net.dialled() == {"type": "dialled", "address": gateway.network_addresses[0], "failed": []}


def test_every_address_that_failed_is_reported_with_its_cause(net: Place, caplog: pytest.LogCaptureFixture) -> None:
    gateway = net.gateway()
    refused = free_port()
    with socket.socket() as impostor_listening:
        impostor_listening.bind(("127.0.0.1", 0))
        impostor_listening.listen(1)

        def hang_up() -> None:
            peer, _ = impostor_listening.accept()
            with peer:
                peer.recv(65536)  # what is left unread would make it a reset

        with_silence = threading.Thread(target=hang_up)
        with_silence.start()
        closes = f"tls:127.0.0.1:{impostor_listening.getsockname()[1]}"
        bad = [
            "unix:/nowhere/gw.sock",
            f"tls:127.0.0.1:{refused}",
            "tls:no-such-host.invalid:9000",
            "tls:nonsense",
            "carrier-pigeon:5",
            closes,
        ]
        net.worker(*bad, *gateway.network_addresses)
        told = net.dialled()
        with_silence.join(10)
    assert told["address"] == gateway.network_addresses[0]
    causes = {each["address"]: each["cause"] for each in told["failed"]}
    assert list(causes) == bad
    assert causes[bad[0]] == "No such file or directory"
    assert causes[bad[1]] == "Connection refused"
    assert causes[bad[2]].startswith("the name cannot be looked up here: ")
    assert causes[bad[3]] == "not an address"
    assert causes[bad[4]] == "unknown kind of address: 'carrier-pigeon'"
    assert causes[bad[5]].startswith("no TLS handshake: ")
    for address, cause in causes.items():
        assert f"the server cannot be reached at {address}: {cause}" in caplog.text


def test_a_server_with_another_certificate_never_hears_the_credential(net: Place, tmp_path: Path) -> None:
    impostor = Place(tmp_path)
    try:
        theirs = impostor.gateway()
        ours = net.gateway()
        net.worker(*theirs.network_addresses, *ours.network_addresses)
        told = net.dialled()
        assert told["address"] == ours.network_addresses[0]
        assert "another certificate than ours: somebody else answers there" in told["failed"][0]["cause"]
        assert impostor.desk.asked == []
    finally:
        impostor.close()


def test_an_address_that_swallows_packets_costs_its_time_and_no_more(
    net: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "CONNECT_S", 0.3)
    with socket.socket() as full:  # a backlog that is full drops what comes
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        crowd = [socket.socket() for _ in range(4)]
        for each in crowd:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        gateway = net.gateway()
        net.worker(f"tls:127.0.0.1:{full.getsockname()[1]}", *gateway.network_addresses)
        assert "no answer to the connection within" in net.dialled()["failed"][0]["cause"]
        for each in crowd:
            each.close()


def test_a_name_is_looked_up_and_its_numbers_are_tried(net: Place) -> None:
    gateway = net.gateway()
    port = gateway.network_addresses[0].rpartition(":")[2]
    net.worker(f"tls:localhost:{port}")
    assert net.dialled()["address"] == f"tls:localhost:{port}"


def test_a_name_service_that_never_answers_does_not_stop_the_worker(
    net: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that asked hangs; addresses in numbers are tried all the same."""
    never, real = threading.Event(), socket.getaddrinfo

    def hangs_on_names(host: Any, *args: Any, **options: Any) -> Any:
        if host == "slow.invalid":
            never.wait(30)
        return real(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hangs_on_names)
    monkeypatch.setattr(route, "PATIENCE_S", 0.3)
    gateway = net.gateway()
    net.worker("tls:slow.invalid:9000", *gateway.network_addresses)
    told = net.dialled()
    never.set()
    assert told["address"] == gateway.network_addresses[0]
    assert "did not answer within" in told["failed"][0]["cause"]


def test_a_worker_that_needs_no_tls_loads_none() -> None:
    """Every module costs a start on a shared file system."""
    code = "import sys; from openai4s_provisioner.worker import worker; assert 'ssl' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)


def test_the_record_has_one_name_at_both_ends() -> None:
    assert attempt_module.ADDRESS_RECORD == ADDRESS_RECORD


def test_a_server_that_moved_is_found_by_its_record(net: Place) -> None:
    first = net.gateway()
    folder = net.worker(*first.network_addresses)
    net.observer.wait_for(lambda told: told.detail == LinkState.CONNECTED)
    second_listen = f"127.0.0.1:{free_port()}"
    record = address_record([f"tls:{second_listen}"], net.certificate.sha256)
    address_keeper._write(folder / ADDRESS_RECORD, record.encode())
    door = NetworkDoor(parse_listen(second_listen), (), net.certificate)
    # The same server on another port: its links are what it resumes, so they move with it.
    running = first._running
    assert running is not None
    assert running.network is not None
    moved = threading.Event()

    def move() -> None:
        assert running.network is not None
        running.network.close()
        running.network = NetworkListener(running.loop, door.listen, 16)
        running.network.start(lambda peer: running.reception.receive(peer, running._tls))
        for each in running.roster._workers.values():
            each.link._lose("cut")
        moved.set()

    running.loop.call_soon_threadsafe(move)
    assert moved.wait(10)
    told = net.dialled(2)
    assert told["address"] == f"tls:{second_listen}"
    assert net.observer.link_states()[-1] is LinkState.CONNECTED


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"addresses": [], "certificate_sha256": null}', b'{"addresses": 5}', b"\xff"],
)
def test_a_record_that_is_nothing_leaves_the_former_addresses(net: Place, content: bytes) -> None:
    gateway = net.gateway(limits=Limits(reconnect_s=20))
    folder = net.worker(*gateway.network_addresses)
    net.observer.wait_for(lambda told: told.detail == LinkState.CONNECTED)
    (folder / ADDRESS_RECORD).write_bytes(content)
    (folder / ADDRESS_RECORD).chmod(0o600)
    running = gateway._running
    assert running is not None
    for one in running.roster._workers.values():
        running.loop.call_soon_threadsafe(one.link._lose, "cut")
    net.observer.wait_for(lambda _: net.observer.link_states().count(LinkState.CONNECTED) == 2)


def test_a_worker_that_finds_nobody_says_where_it_looked(net: Place, caplog: pytest.LogCaptureFixture) -> None:
    refused = free_port()
    folder = net.worker(f"tls:127.0.0.1:{refused}", grace_s=0.5)
    net.join_workers()
    assert net.exit_codes == [ExitCode.NEVER_REGISTERED]
    line = f"the server cannot be reached at tls:127.0.0.1:{refused}: Connection refused"
    assert caplog.text.count(line) == 1
    assert failed_ways(folder, 0) == f"127.0.0.1:{refused}: Connection refused"


def test_one_that_comes_through_in_the_end_takes_back_what_it_had_written_down(
    net: Place, wait_until: WaitUntil
) -> None:
    port = free_port()
    folder = net.worker(f"tls:127.0.0.1:{port}")
    wait_until(lambda: failed_ways(folder, 0) != "", "what fails is written down", 20)
    net.gateway(f"127.0.0.1:{port}")
    net.observer.wait_for(lambda told: told.detail == LinkState.CONNECTED)
    wait_until(lambda: failed_ways(folder, 0) == "", "it is taken back", 20)
