"""The gateway with real sockets: who comes in, who does not, and what a stop leaves behind."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner.gateway.desk import LinkState
from openai4s_provisioner.gateway.limits import Limits
from openai4s_provisioner.gateway.reception import Refusal
from openai4s_provisioner.gateway.worker_gateway import WorkerGateway
from openai4s_provisioner.orchestration.errors import ConfigError, StateError
from openai4s_provisioner.orchestration.models import Registration
from openai4s_provisioner.testing.front_desks import (
    DeskThatAdmitsOnce,
    DeskThatAnswersLate,
    DeskThatCannotAsk,
    ObserverThatRemembers,
)
from openai4s_provisioner.wire.handshake import Hello, ProofWanted, Resume, Welcomed, WorkerHandshake

KEY = bytes(range(32))
ME = Registration("w", "alloc", 1, 0)
QUICK = Limits(handshake_s=0.4, unauthenticated_peers=8, reconnect_s=0.5, idle_tick_s=0.05)

WaitUntil = Callable[..., Any]
Open = Callable[..., WorkerGateway]


@pytest.fixture
def observer() -> ObserverThatRemembers:
    return ObserverThatRemembers()


@pytest.fixture
def gateway(place: Any, observer: ObserverThatRemembers) -> Iterator[Open]:
    """`gateway(desk, limits)`: a running gateway, stopped at the end."""
    opened: list[WorkerGateway] = []

    def open_one(desk: DeskThatAdmitsOnce, limits: Limits = QUICK) -> WorkerGateway:
        one = WorkerGateway(place.root / "gw", desk, observer, limits)
        opened.append(one)
        one.start()
        return one

    yield open_one
    for one in opened:
        one.stop()


def dial(gateway: WorkerGateway) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(10)
    peer.connect(gateway.address.removeprefix("unix:"))
    return peer


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


def is_closed_by_gateway(peer: socket.socket) -> bool:
    """A plain end, and nothing before it."""
    return peer.recv(1) == b""


def refused(gateway: WorkerGateway) -> dict[Refusal, int]:
    return gateway.census().refused


def test_a_credential_lets_its_worker_in_once(gateway: Open, observer: ObserverThatRemembers) -> None:
    opened = gateway(DeskThatAdmitsOnce(good=ME))
    with dial(opened) as first, dial(opened) as second:
        welcome = shake(first, hello())
        assert welcome is not None
        assert shake(second, hello()) is None
    assert observer.wait_for(lambda told: told.what == "registered").detail == welcome.generation
    assert refused(opened) == {Refusal.CREDENTIAL: 1}


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", Refusal.MALFORMED),
        (b"\x16\x03\x01\x02\x00\x01\x00\n", Refusal.MALFORMED),
        (b"x" * 70000, Refusal.TOO_LONG),
        (WorkerHandshake(hello("forged")).opening, Refusal.CREDENTIAL),
        (WorkerHandshake(hello()).opening + b"early", Refusal.MALFORMED),
        (b"", Refusal.TOO_LATE),
        (b"{", Refusal.TOO_LATE),
    ],
)
def test_every_refusal_looks_alike_to_the_peer(gateway: Open, sent: bytes, kind: Refusal) -> None:
    opened = gateway(DeskThatAdmitsOnce(good=ME))
    with dial(opened) as peer:
        with contextlib.suppress(BrokenPipeError):
            peer.sendall(sent)
        assert is_closed_by_gateway(peer)
    assert refused(opened) == {kind: 1}


def test_a_dribbling_peer_has_one_deadline_in_total(gateway: Open) -> None:
    opened = gateway(DeskThatAdmitsOnce(good=ME))
    started = time.monotonic()
    with dial(opened) as peer:
        peer.settimeout(0.05)
        for byte in WorkerHandshake(hello()).opening * 3:
            with contextlib.suppress(BrokenPipeError):
                peer.send(bytes([byte]))
            try:
                assert peer.recv(1) == b""
                break
            except TimeoutError:
                continue
    assert time.monotonic() - started < 5 * QUICK.handshake_s
    assert refused(opened) == {Refusal.TOO_LATE: 1}


def test_a_peer_over_the_limit_is_closed_at_once_and_counted_apart(gateway: Open, wait_until: WaitUntil) -> None:
    opened = gateway(DeskThatAdmitsOnce(good=ME), Limits(handshake_s=30, unauthenticated_peers=3))
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(dial(opened)) for _ in range(3)]
        wait_until(lambda: opened.census().waiting == 3, "three peers wait")
        surplus = stack.enter_context(dial(opened))
        assert is_closed_by_gateway(surplus)
        assert (opened.census().over_limit, refused(opened)) == (1, {})
        silent[0].close()
        wait_until(lambda: opened.census().waiting == 2, "one has left")
        assert shake(stack.enter_context(dial(opened)), hello()) is not None


def test_a_desk_that_cannot_ask_closes_and_burns_nothing(gateway: Open) -> None:
    desk = DeskThatCannotAsk(good=ME)
    opened = gateway(desk)
    with dial(opened) as peer:
        assert shake(peer, hello()) is None
    desk.is_down = False
    with dial(opened) as peer:
        assert shake(peer, hello()) is not None
    assert refused(opened) == {Refusal.DESK_SILENT: 1}


def test_a_worker_resumes_by_proof_under_a_fresh_generation(gateway: Open, observer: ObserverThatRemembers) -> None:
    opened = gateway(DeskThatAdmitsOnce(good=ME), Limits())
    with dial(opened) as peer:
        first = shake(peer, hello())
    observer.wait_for(lambda told: told.detail == LinkState.RECONNECTING)
    with dial(opened) as peer:
        again = shake(peer, Resume("alloc", 0, 0, KEY))
        assert first is not None
        assert again is not None
        assert again.generation != first.generation
        observer.wait_for(lambda told: observer.link_states()[-2:] == ["reconnecting", "connected"])


def test_a_stale_connection_is_replaced_by_the_newer_one(gateway: Open, observer: ObserverThatRemembers) -> None:
    opened = gateway(DeskThatAdmitsOnce(good=ME), Limits())
    with dial(opened) as stale, dial(opened) as newer:
        assert shake(stale, hello()) is not None
        assert shake(newer, Resume("alloc", 0, 0, KEY)) is not None
        assert is_closed_by_gateway(stale)
        assert opened.send("alloc", 0, {"type": "end", "reason": "test"})
        assert b'"end"' in newer.recv(65536)
    assert LinkState.GONE not in observer.link_states()


@pytest.mark.parametrize(
    ("allocation_id", "rank", "key"),
    [("alloc", 0, bytes(32)), ("alloc", 1, KEY), ("unknown", 0, KEY), ("unknown", 0, bytes(32))],
)
def test_a_resume_without_the_key_is_challenged_and_refused_alike(
    gateway: Open, allocation_id: str, rank: int, key: bytes
) -> None:
    opened = gateway(DeskThatAdmitsOnce(good=ME), Limits())
    with dial(opened) as worker, dial(opened) as forger:
        assert shake(worker, hello()) is not None
        assert shake(forger, Resume(allocation_id, rank, 0, key)) is None
    assert refused(opened) == {Refusal.PROOF: 1}


def test_an_answer_lost_after_the_burn_loses_nothing(gateway: Open, observer: ObserverThatRemembers) -> None:
    desk = DeskThatAnswersLate(good=ME)
    opened = gateway(desk, Limits())
    with dial(opened) as peer:
        peer.sendall(WorkerHandshake(hello()).opening)
        while not desk.asked:
            time.sleep(0.01)
    while Refusal.LEFT not in refused(opened):
        time.sleep(0.01)
    desk.answer_now()
    opened.census()
    assert observer.told == [], "nobody who left is published"
    with dial(opened) as peer:
        assert shake(peer, Resume("alloc", 0, 0, KEY)) is not None
        observer.wait_for(lambda told: told.what == "registered")


def test_an_answer_after_the_stop_publishes_nothing(gateway: Open, observer: ObserverThatRemembers) -> None:
    desk = DeskThatAnswersLate(good=ME)
    opened = gateway(desk)
    with dial(opened) as peer:
        peer.sendall(WorkerHandshake(hello()).opening)
        while not desk.asked:
            time.sleep(0.01)
        opened.stop()
        opened.start()
        desk.answer_now()
        assert is_closed_by_gateway(peer)
    opened.census()
    assert observer.told == []


def test_a_worker_that_does_not_come_back_is_gone(gateway: Open, observer: ObserverThatRemembers) -> None:
    opened = gateway(DeskThatAdmitsOnce(good=ME))
    with dial(opened) as peer:
        assert shake(peer, hello()) is not None
    observer.wait_for(lambda told: told.detail == LinkState.GONE)
    assert observer.link_states() == ["connected", "reconnecting", "gone"]
    assert not opened.send("alloc", 0, {"type": "end"})


def test_a_worker_that_is_paused_is_waited_for_however_long_it_is_silent(
    gateway: Open, observer: ObserverThatRemembers
) -> None:
    """A second one, which nobody has paused, is gone meanwhile: so the first one's time was up as well."""
    opened = gateway(DeskThatAdmitsOnce(good=ME, other=Registration("w2", "alloc2", 1, 0)))
    opened.hold("alloc", True)
    with dial(opened) as peer, dial(opened) as second:
        assert shake(peer, hello()) is not None
        assert shake(second, hello("other")) is not None
        peer.close()
        observer.wait_for(lambda told: told.detail == LinkState.RECONNECTING)
    observer.wait_for(lambda told: told.detail == LinkState.GONE)
    assert observer.link_states().count(LinkState.GONE) == 1
    with dial(opened) as again:
        assert shake(again, Resume("alloc", 0, 0, KEY)) is not None
    opened.hold("alloc", False)
    observer.wait_for(lambda told: observer.link_states().count(LinkState.GONE) == 2)


def test_a_forgotten_allocation_loses_its_links_and_cannot_resume(gateway: Open) -> None:
    opened = gateway(DeskThatAdmitsOnce(good=ME))
    with dial(opened) as peer, dial(opened) as again:
        assert shake(peer, hello()) is not None
        opened.forget("alloc")
        assert peer.recv(65536) == b""
        assert shake(again, Resume("alloc", 0, 0, KEY)) is None


def test_an_orphan_is_closed_when_nobody_expects_it(gateway: Open, observer: ObserverThatRemembers) -> None:
    desk = DeskThatCannotAsk(good=ME)
    desk.is_down = False
    opened = gateway(desk, Limits(orphan_s=0.2, idle_tick_s=0.05))
    with dial(opened) as peer:
        assert shake(peer, hello()) is not None
        desk.is_down = True
        peer.settimeout(0.6)
        with pytest.raises(TimeoutError):
            peer.recv(1)
        desk.expected = desk.is_down = False
        peer.settimeout(10)
        assert is_closed_by_gateway(peer)
    observer.wait_for(lambda told: told.detail == LinkState.GONE)


def test_a_stopped_gateway_leaves_no_thread_no_descriptor_and_no_file(gateway: Open, place: Any) -> None:
    before = (threading.active_count(), len(os.listdir("/proc/self/fd")), place.everything())
    opened = gateway(DeskThatAdmitsOnce(good=ME))
    opened.open_endpoint("alloc", "launch", "k1")
    with dial(opened) as worker, dial(opened) as silent:
        assert shake(worker, hello()) is not None
        opened.stop()
        assert is_closed_by_gateway(worker)
        assert is_closed_by_gateway(silent)
    assert (threading.active_count(), len(os.listdir("/proc/self/fd")), place.everything()) == before
    opened.stop()


def test_a_path_too_long_for_a_socket_is_refused_before_anything_is_made(
    place: Any, observer: ObserverThatRemembers
) -> None:
    folder = place.root / ("x" * 100)
    with pytest.raises(ConfigError, match="107"):
        WorkerGateway(folder, DeskThatAdmitsOnce(), observer).start()
    assert not folder.exists()


def test_a_folder_that_others_can_enter_is_refused(place: Any, observer: ObserverThatRemembers) -> None:
    folder: Path = place.root / "gw"
    folder.mkdir(mode=0o755)
    with pytest.raises(StateError, match="0700"):
        WorkerGateway(folder, DeskThatAdmitsOnce(), observer).start()


def test_a_second_server_does_not_take_the_first_ones_socket(
    gateway: Open, place: Any, observer: ObserverThatRemembers
) -> None:
    opened = gateway(DeskThatAdmitsOnce(good=ME))
    with pytest.raises(StateError, match="another process"):
        WorkerGateway(place.root / "gw", DeskThatAdmitsOnce(), observer).start()
    with dial(opened) as peer:
        assert shake(peer, hello()) is not None


def test_a_socket_that_a_dead_server_left_is_replaced(gateway: Open, place: Any) -> None:
    (place.root / "gw").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(place.root / "gw" / "gw.sock"))
    opened = gateway(DeskThatAdmitsOnce(good=ME))
    with dial(opened) as peer:
        assert shake(peer, hello()) is not None


def test_a_stopped_gateway_answers_politely(place: Any, observer: ObserverThatRemembers) -> None:
    stopped = WorkerGateway(place.root / "gw", DeskThatAdmitsOnce(), observer)
    assert not stopped.send("alloc", 0, {"type": "end"})
    stopped.close_endpoint("launch")
    stopped.forget("alloc")
    with pytest.raises(StateError):
        stopped.open_endpoint("alloc", "launch", "k")
    stopped.stop()


def test_sockets_are_for_their_owner_alone(gateway: Open, place: Any) -> None:
    opened = gateway(DeskThatAdmitsOnce())
    endpoint = opened.open_endpoint("alloc", "launch", "k1")
    paths = [place.root / "gw" / "gw.sock", *(Path(f"{endpoint.ip}-{port}") for port in endpoint.ports.values())]
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    assert (place.root / "gw").stat().st_mode & 0o777 == 0o700
    opened.close_endpoint("launch")
    assert [path.exists() for path in paths] == [True] + 5 * [False]
