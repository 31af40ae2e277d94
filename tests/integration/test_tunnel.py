"""Gateway and worker together, with a kernel that echoes: streams, control, cuts, the end."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner.gateway import roster
from openai4s_provisioner.gateway.desk import LinkState
from openai4s_provisioner.gateway.limits import Limits
from openai4s_provisioner.gateway.worker_gateway import Endpoint, WorkerGateway
from openai4s_provisioner.orchestration.models import Registration
from openai4s_provisioner.testing.echo_kernel import KernelThatEchoes, KernelThatNeverListens
from openai4s_provisioner.testing.front_desks import DeskThatAdmitsOnce, DeskThatAnswersLate, ObserverThatRemembers
from openai4s_provisioner.transport.loop import Loop
from openai4s_provisioner.worker.attempt import take_attempt
from openai4s_provisioner.worker.exit_codes import ExitCode
from openai4s_provisioner.worker.worker import Worker

ME = Registration("w", "alloc", 1, 0)
LAUNCH = {"launch_id": "first", "argv": ["kernel"], "env": {}, "cwd": "/", "key": "k"}
WaitUntil = Callable[..., Any]


class RunningWorker:
    """A worker in a thread of this process; its kernels echo."""

    def __init__(
        self, folder: Path, address: str, grace_s: float = 10, kind: type[KernelThatEchoes] = KernelThatEchoes
    ) -> None:
        self.kernels: dict[str, KernelThatEchoes] = {}
        self.launched: list[str] = []
        self._kind = kind
        self.exit_code: int | None = None
        self.loop = Loop()
        self._folder = folder
        folder.mkdir(mode=0o700)
        attempt = take_attempt(str(write_attempt(folder, address, grace_s)), 0)
        self.worker = Worker(self.loop, attempt, self._make, str(folder))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self, timeout_s: float = 10) -> int | None:
        self._thread.join(timeout_s)
        return self.exit_code

    def stop(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.worker.end, "test over")
            self._thread.join(15)
        assert not self._thread.is_alive()

    def cut(self) -> None:
        """Shut the connection down under the link, as a network would."""
        done = threading.Event()

        def shut() -> None:
            connection = self.worker._link._socket
            if isinstance(connection, socket.socket):
                connection.shutdown(socket.SHUT_RDWR)
            done.set()

        self.loop.call_soon_threadsafe(shut)
        assert done.wait(10)

    def _run(self) -> None:
        self.exit_code = self.worker.run()

    def _make(self, launch: dict[str, Any] | None, on_event: Callable[[dict[str, Any]], None]) -> KernelThatEchoes:
        kernel = self._kind(str(self._folder), launch, on_event)
        self.launched.append(kernel.launch_id)
        self.kernels[kernel.launch_id] = kernel
        return kernel


def write_attempt(folder: Path, address: str, grace_s: float) -> Path:
    attempt = {
        "version": 1,
        "workload_id": "w",
        "allocation_id": "alloc",
        "epoch": 1,
        "rank": 0,
        "ranks": 1,
        "credential": "good",
        "addresses": [address],
        "certificate_sha256": None,
        "workspace": {"path": "/", "nonce_name": "n"},
        "sandbox": {"workspace": "/"},
        "launch": LAUNCH,
        "server_grace_s": grace_s,
    }
    path = folder / "rank-0.json"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as stream:
        json.dump(attempt, stream)
    return folder


class Tunnel:
    def __init__(self, root: Path, desk: DeskThatAdmitsOnce, limits: Limits) -> None:
        self.observer = ObserverThatRemembers()
        self.gateway = WorkerGateway(root / "gw", desk, self.observer, limits)
        self.gateway.start()
        self._root = root
        self._workers: list[RunningWorker] = []

    def worker(self, **options: Any) -> RunningWorker:
        one = RunningWorker(self._root / f"worker{len(self._workers)}", self.gateway.address, **options)
        self._workers.append(one)
        return one

    def endpoint(self, launch_id: str = "first") -> Endpoint:
        return self.gateway.open_endpoint("alloc", launch_id, "k")

    def connected(self) -> None:
        self.observer.wait_for(lambda told: told.detail == LinkState.CONNECTED)

    def exited(self, launch_id: str = "first") -> None:
        self.observer.wait_for(lambda told: told.what == "message" and told.detail["type"] == "kernel_exited")

    def close(self) -> None:
        for one in self._workers:
            one.stop()
        self.gateway.stop()


@pytest.fixture
def tunnel(place: Any) -> Iterator[Callable[..., Tunnel]]:
    opened: list[Tunnel] = []

    def open_one(desk: DeskThatAdmitsOnce | None = None, limits: Limits | None = None) -> Tunnel:
        one = Tunnel(place.root, desk or DeskThatAdmitsOnce(good=ME), limits or Limits())
        opened.append(one)
        return one

    yield open_one
    for one in opened:
        one.close()


def connect(endpoint: Endpoint, channel: str) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(20)
    peer.connect(f"{endpoint.ip}-{endpoint.ports[channel]}")
    return peer


def echoed(peer: socket.socket, data: bytes) -> bytes:
    """Send while reading, so that neither side has to hold all of it."""
    threading.Thread(target=peer.sendall, args=(data,)).start()
    back = bytearray()
    while len(back) < len(data):
        piece = peer.recv(1 << 20)
        if not piece:
            break
        back += piece
    return bytes(back)


def test_every_channel_reaches_its_own_socket(tunnel: Callable[..., Tunnel]) -> None:
    opened = tunnel()
    opened.worker()
    endpoint = opened.endpoint()
    for channel in endpoint.ports:
        with connect(endpoint, channel) as peer:
            assert echoed(peer, channel.encode()) == channel.encode()


def test_a_client_may_connect_before_the_worker_has_dialled(tunnel: Callable[..., Tunnel]) -> None:
    opened = tunnel()
    with connect(opened.endpoint(), "shell") as peer:
        peer.sendall(b"early")
        opened.worker()
        assert peer.recv(100) == b"early"


@pytest.mark.parametrize("channel", ["shell", "iopub"])
def test_megabytes_come_through_unchanged(tunnel: Callable[..., Tunnel], channel: str) -> None:
    opened = tunnel()
    opened.worker()
    data = os.urandom(1 << 20) * 16
    with connect(opened.endpoint(), channel) as peer:
        assert echoed(peer, data) == data


def test_cuts_lose_and_repeat_nothing(tunnel: Callable[..., Tunnel]) -> None:
    opened = tunnel()
    worker = opened.worker()
    data = os.urandom(1 << 20) * 16
    with connect(opened.endpoint(), "shell") as peer:
        assert echoed(peer, b"ready") == b"ready"
        stopped = threading.Event()

        def cut_again_and_again() -> None:
            while not stopped.wait(0.05):
                worker.cut()

        cutter = threading.Thread(target=cut_again_and_again)
        cutter.start()
        try:
            assert echoed(peer, data) == data
        finally:
            stopped.set()
            cutter.join()
    assert opened.observer.link_states().count(LinkState.RECONNECTING) >= 1
    assert LinkState.GONE not in opened.observer.link_states()


def test_an_answer_lost_after_the_burn_is_made_good_by_a_resume(
    tunnel: Callable[..., Tunnel], wait_until: WaitUntil
) -> None:
    desk = DeskThatAnswersLate(good=ME)
    opened = tunnel(desk, Limits(handshake_s=0.3))
    opened.worker()
    wait_until(lambda: opened.gateway.census().refused, "the handshake ran out of time before the desk answered")
    desk.answer_now()
    opened.connected()
    assert desk.asked.count("good") >= 1


def test_signals_stops_and_launches_reach_the_kernels(tunnel: Callable[..., Tunnel], wait_until: WaitUntil) -> None:
    opened = tunnel()
    worker = opened.worker()
    opened.connected()
    assert opened.gateway.send("alloc", 0, {"type": "signal", "launch_id": "first", "signum": 2})
    assert opened.gateway.send("alloc", 0, {"type": "stop_kernel", "launch_id": "first", "grace_s": 0.0})
    second = {**LAUNCH, "launch_id": "second"}
    assert opened.gateway.send("alloc", 0, {"type": "launch", "launch": second})
    assert opened.gateway.send("alloc", 0, {"type": "launch", "launch": second})
    with connect(opened.endpoint("second"), "shell") as peer:
        assert echoed(peer, b"again") == b"again"
    assert worker.kernels["first"].signals == [2]
    assert worker.kernels["first"].stops == [0.0]
    assert worker.kernels["first"].is_closed
    assert worker.launched == ["first", "second"], "a repeated launch starts nothing"


def test_when_the_kernel_is_gone_its_connections_close_and_new_ones_wait(tunnel: Callable[..., Tunnel]) -> None:
    opened = tunnel()
    opened.worker()
    endpoint = opened.endpoint()
    with connect(endpoint, "shell") as peer:
        assert echoed(peer, b"x") == b"x"
        opened.gateway.send("alloc", 0, {"type": "stop_kernel", "launch_id": "first", "grace_s": 0.0})
        opened.exited()
        assert peer.recv(1) == b""
    with connect(endpoint, "shell") as late:
        late.settimeout(0.3)
        with pytest.raises(TimeoutError):
            late.recv(1)
        opened.gateway.close_endpoint("first")
        late.settimeout(10)
        with pytest.raises(ConnectionResetError):
            late.recv(1)


def test_clients_of_a_kernel_that_died_before_its_endpoint_was_opened_wait(tunnel: Callable[..., Tunnel]) -> None:
    opened = tunnel()
    opened.worker()
    opened.connected()
    opened.gateway.send("alloc", 0, {"type": "stop_kernel", "launch_id": "first", "grace_s": 0.0})
    opened.exited()
    with connect(opened.endpoint(), "shell") as peer:
        peer.settimeout(0.3)
        with pytest.raises(TimeoutError):  # taken and dropped, a zmq client would come back ten times a second
            peer.recv(1)


def test_a_server_that_drops_its_worker_at_once_is_not_dialled_without_end(
    tunnel: Callable[..., Tunnel], monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    dropped: list[float] = []

    def drop(self: object, peer: socket.socket, generation: str, received: int) -> None:
        dropped.append(time.monotonic())
        peer.close()

    monkeypatch.setattr(roster._Worker, "attach", drop)
    opened = tunnel()
    opened.worker()
    wait_until(lambda: len(dropped) >= 5, "five connections were dropped")
    monkeypatch.undo()
    opened.connected()
    pauses = [later - earlier for earlier, later in itertools.pairwise(dropped)]
    assert pauses[3] > 0.3, pauses


def test_a_link_that_was_cut_is_dialled_again_at_once_however_often(tunnel: Callable[..., Tunnel]) -> None:
    opened = tunnel()
    worker = opened.worker()
    opened.connected()
    with connect(opened.endpoint(), "shell") as peer:
        for _ in range(5):
            assert echoed(peer, b"x") == b"x"
            before = len(opened.observer.link_states())
            worker.cut()
            opened.observer.wait_for(lambda told, n=before: len(opened.observer.link_states()) >= n + 2)  # type: ignore[misc]
    assert worker.worker._dialer._rounds == 0


def test_a_kernel_that_dies_before_it_listens_lets_its_clients_go(tunnel: Callable[..., Tunnel]) -> None:
    opened = tunnel()
    opened.worker(kind=KernelThatNeverListens)
    with connect(opened.endpoint(), "shell") as peer:
        peer.sendall(b"anybody there?")
        peer.settimeout(0.3)
        with pytest.raises(TimeoutError):
            peer.recv(1)
        opened.gateway.send("alloc", 0, {"type": "stop_kernel", "launch_id": "first", "grace_s": 0.0})
        peer.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(1) == b""


def test_a_crowd_of_hostile_peers_does_not_disturb_a_session(tunnel: Callable[..., Tunnel]) -> None:
    opened = tunnel(limits=Limits(handshake_s=1, unauthenticated_peers=16))
    opened.worker()
    path = opened.gateway.address.removeprefix("unix:")
    with contextlib.ExitStack() as stack, connect(opened.endpoint(), "control") as peer:
        assert echoed(peer, b"before") == b"before"
        for number in range(300):
            hostile = stack.enter_context(socket.socket(socket.AF_UNIX))
            hostile.connect(path)
            with contextlib.suppress(OSError):
                hostile.sendall((b"", b"\x16\x03\x01\n", b"{", b"x" * 4096)[number % 4])
            started = time.monotonic()
            assert echoed(peer, b"ping") == b"ping"
            assert time.monotonic() - started < 2
    assert opened.gateway.census().over_limit > 0
    assert LinkState.RECONNECTING not in opened.observer.link_states()


def test_a_worker_told_to_end_stops_its_kernel_says_goodbye_and_leaves(tunnel: Callable[..., Tunnel]) -> None:
    opened = tunnel()
    worker = opened.worker()
    opened.connected()
    opened.gateway.send("alloc", 0, {"type": "end", "reason": "the user asked"})
    assert worker.join() == ExitCode.ENDED
    opened.observer.wait_for(lambda told: told.detail == LinkState.GONE)
    assert opened.observer.messages("ended") == [{"type": "ended", "exit_code": 0, "reason": "the user asked"}]
    assert worker.kernels["first"].is_closed
    assert LinkState.RECONNECTING not in opened.observer.link_states()


def test_a_worker_whose_server_stays_away_stops_everything(tunnel: Callable[..., Tunnel]) -> None:
    opened = tunnel()
    worker = opened.worker(grace_s=0.5)
    opened.connected()
    opened.gateway.stop()
    assert worker.join() == ExitCode.SERVER_GONE
    assert worker.kernels["first"].is_closed


def test_a_worker_that_no_server_takes_says_so(tunnel: Callable[..., Tunnel]) -> None:
    opened = tunnel(DeskThatAdmitsOnce())
    worker = opened.worker(grace_s=0.5)
    assert worker.join() == ExitCode.NEVER_REGISTERED


def test_a_kernel_starts_before_the_server_answers_and_its_news_wait(tunnel: Callable[..., Tunnel]) -> None:
    desk = DeskThatAnswersLate(good=ME)
    opened = tunnel(desk)
    worker = opened.worker()
    while not desk.asked:
        threading.Event().wait(0.01)
    assert "first" in worker.kernels
    desk.answer_now()
    opened.observer.wait_for(lambda told: told.what == "message" and told.detail["type"] == "kernel_started")
