"""The link through networks as they are: firewalls that forget, power cuts, moved servers, IPv6, wrong interfaces.

A real gateway here, a real worker with ipykernel on a node behind a router, all in network namespaces.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner.gateway.certificate import load_certificate
from openai4s_provisioner.gateway.desk import LinkState
from openai4s_provisioner.gateway.limits import Limits
from openai4s_provisioner.gateway.listen_address import parse_listen
from openai4s_provisioner.gateway.worker_gateway import NetworkDoor, WorkerGateway
from openai4s_provisioner.orchestration import address_keeper
from openai4s_provisioner.orchestration.models import Registration
from openai4s_provisioner.orchestration.ways_in import ADDRESS_RECORD, address_record
from openai4s_provisioner.testing.front_desks import DeskThatAdmitsOnce

from .test_real_kernel import SECRETS, Notebook, Session
from .wires import Wires, laid_wires

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are made by root"),
    pytest.mark.skipif(not (shutil.which("ip") and shutil.which("nft")), reason="needs iproute2 and nftables"),
    pytest.mark.timeout(300),
]
FULL = "OPENAI4S_FULL" in os.environ
NOTICED_WITHIN_S = 60
Figure = Callable[[str, object], None]
Open = Callable[..., "FarSession"]


class FarSession(Session):
    """Its worker runs on the node of `wires` and dials `hosts`, in that order."""

    def __init__(self, root: Path, wires: Wires, hosts: list[str]) -> None:
        self._hosts = hosts
        super().__init__(root, sys.executable, wires.exec_in_node)

    def _make_gateway(self, root: Path) -> WorkerGateway:
        self.certificate = load_certificate(root / "state")
        desk = DeskThatAdmitsOnce(**{SECRETS[0]: Registration("w", "alloc", 1, 0)})
        door = NetworkDoor(parse_listen("21000-21999"), (), self.certificate)
        return WorkerGateway(root / "gw", desk, self.observer, Limits(), door)

    def _write_attempt(self) -> None:
        super()._write_attempt()
        path = self.attempt_dir / "rank-0.json"
        content = json.loads(path.read_text())
        content |= {
            "addresses": self.addresses(*self._hosts),
            "certificate_sha256": self.certificate.sha256,
            "server_grace_s": 200,
        }
        path.write_text(json.dumps(content))

    def addresses(self, *hosts: str) -> list[str]:
        running = self.gateway._running
        assert running is not None
        assert running.network is not None
        port = running.network.bound.port
        return [f"tls:[{host}]:{port}" if ":" in host else f"tls:{host}:{port}" for host in hosts]

    def connections(self) -> int:
        return self.observer.link_states().count(LinkState.CONNECTED)

    def until(self, state: LinkState, count: int, deadline_s: float) -> float:
        """Wait for the `count`th time that the link is `state`; how many seconds that took."""
        began = time.monotonic()
        self.observer.wait_for(lambda _: self.observer.link_states().count(state) >= count, deadline_s)
        return round(time.monotonic() - began, 1)


@pytest.fixture
def wires() -> Iterator[Wires]:
    with laid_wires() as laid:
        yield laid


@pytest.fixture
def far_session(place: Any, wires: Wires) -> Iterator[Open]:
    opened: list[FarSession] = []

    def open_one(*hosts: str) -> FarSession:
        opened.append(FarSession(place.root, wires, list(hosts)))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def runs(opened: FarSession, code: str = "print(6 * 7)", expected: str = "42\n") -> None:
    async def use() -> None:
        async with Notebook(opened.connection_info()) as notebook:
            assert await notebook.run(code) == ("ok", expected)

    asyncio.run(use())


def test_a_firewall_that_forgets_idle_flows_finds_none(far_session: Open, wires: Wires, figure: Figure) -> None:
    forgets_s, idle_s = (60, 150) if FULL else (20, 30)
    wires.forget_idle_flows_after(forgets_s)
    opened = far_session(wires.server)
    runs(opened)
    time.sleep(idle_s)  # the idleness itself
    runs(opened)
    figure("idle for, and forgotten after (seconds)", (idle_s, forgets_s))
    assert opened.connections() == 1, "the keep-alives kept the flow known"


def test_a_flow_that_was_forgotten_all_the_same_is_made_anew(far_session: Open, wires: Wires, figure: Figure) -> None:
    wires.forget_idle_flows_after(3)
    opened = far_session(wires.server)

    async def use() -> None:
        async with Notebook(opened.connection_info()) as notebook:
            await notebook.run("x = 7")
            request = notebook.start("import time; time.sleep(6); print(x * 6)")
            assert await notebook.finish(request, 120) == ("ok", ["42\n"])

    began = time.monotonic()
    asyncio.run(use())
    figure("seconds for a cell of 6 whose answer no flow would carry", round(time.monotonic() - began, 1))
    assert opened.connections() > 1


def test_a_node_that_lost_its_power_is_noticed_and_comes_back(far_session: Open, wires: Wires, figure: Figure) -> None:
    opened = far_session(wires.server)

    async def use() -> None:
        async with Notebook(opened.connection_info()) as notebook:
            request = notebook.start("import time\nfor n in range(50): print(n, flush=True); time.sleep(0.1)")
            await notebook.output(request, "3")
            wires.power(False)
            noticed = await asyncio.to_thread(opened.until, LinkState.RECONNECTING, 1, NOTICED_WITHIN_S)
            wires.power(True)
            back = await asyncio.to_thread(opened.until, LinkState.CONNECTED, 2, 90)
            figure("seconds until the silence was noticed, and from power to resumed", (noticed, back))
            status, texts = await notebook.finish(request, 60)
            assert status == "ok"
            said = "".join(texts).split()
            assert said == [str(n) for n in range(50 - len(said), 50)], "what was printed meanwhile, whole and in order"

    asyncio.run(use())


def test_a_server_whose_address_changes_is_found_again(far_session: Open, wires: Wires, figure: Figure) -> None:
    opened = far_session(wires.server)
    runs(opened)
    wires.move_server(wires.server, wires.second_server)
    record = address_record(opened.addresses(wires.second_server), opened.certificate.sha256)
    address_keeper._write(opened.attempt_dir / ADDRESS_RECORD, record.encode())
    figure("seconds until it is connected at the new address", opened.until(LinkState.CONNECTED, 2, 120))
    runs(opened)


def test_a_node_with_ipv6_only(far_session: Open, wires: Wires) -> None:
    wires.give_node_addresses(v4=False)
    opened = far_session(wires.server, wires.server6)
    runs(opened)
    assert f"tls:{wires.server}" in opened.log()


def test_of_two_interfaces_the_first_of_which_does_not_lead_here_the_second_is_taken(
    far_session: Open, wires: Wires, figure: Figure
) -> None:
    wires.add_address(wires.second_server)
    wires.drop_towards(wires.second_server)
    opened = far_session(wires.second_server, wires.server)
    opened.until(LinkState.CONNECTED, 1, 60)
    runs(opened)
    dialled = opened.told("dialled")
    (failed,) = dialled["failed"]
    figure("the first one's failure", failed)
    assert failed["address"] == opened.addresses(wires.second_server)[0]
    assert failed["cause"]
