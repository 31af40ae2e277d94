"""Whole sessions whose workers connect over TLS: the real control plane, the real worker, a real kernel."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.ioloop.manager import AsyncIOLoopKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from traitlets.config import Config

from openai4s_provisioner.app import ControlPlane
from openai4s_provisioner.jupyter import kernelspecs
from openai4s_provisioner.jupyter.settings import OpenAI4S
from openai4s_provisioner.orchestration.config import default_config
from openai4s_provisioner.orchestration.store import Store
from openai4s_provisioner.orchestration.ways_in import ADDRESS_RECORD

from .conftest import SessionLab

pytestmark = pytest.mark.anyio
CLUSTER = '[profiles.default]\nbackend = "local"\ntransport = "tcp"\n'
UNREACHABLE = CLUSTER + "registration_timeout_s = {patience}\n[limits]\nserver_grace_s = {grace}\n"


@pytest.fixture(autouse=True)
def cluster(place: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    path: Path = place.root / "cluster.toml"
    path.write_text(CLUSTER)
    monkeypatch.setenv("OPENAI4S_CLUSTER_TOML", str(path))
    monkeypatch.setenv("OPENAI4S_WORKER_LISTEN", "127.0.0.1:21000-21999")
    return path


def rewrite(path: Path, content: str) -> None:
    path.write_text(content)


async def events(lab: SessionLab, kind: str) -> list[str]:
    """The details of this session's events of one kind."""
    await lab.situation()
    running = lab.control._running
    assert running is not None
    store = running.sessions._store
    found = await asyncio.wrap_future(store.submit(Store.events, lab.workload_id))
    return [event.detail for event in found if event.kind == kind]


async def test_a_session_runs_over_tls_and_its_way_is_recorded(lab: SessionLab) -> None:
    await lab.start()
    assert await lab.value("6 * 7") == "42"
    (way,) = await events(lab, "dialled")
    assert way.startswith("worker 0 connected at tls:127.0.0.1:21")
    await lab.manager.interrupt_kernel()
    await lab.manager.restart_kernel()
    await lab.connect()
    assert await lab.value("6 * 7") == "42"


@pytest.mark.parametrize("listen", ["[::1]:21000-21999", "21000-21999"])
async def test_other_forms_of_listening(lab: SessionLab, monkeypatch: pytest.MonkeyPatch, listen: str) -> None:
    monkeypatch.setenv("OPENAI4S_WORKER_LISTEN", listen)
    await lab.start()
    assert await lab.value("6 * 7") == "42"


async def test_a_local_session_keeps_to_the_unix_socket_unless_told_otherwise(lab: SessionLab, cluster: Path) -> None:
    rewrite(cluster, CLUSTER.replace('transport = "tcp"\n', ""))
    await lab.start()
    (way,) = await events(lab, "dialled")
    assert way.startswith("worker 0 connected at unix:")


async def test_an_advertised_address_that_leads_nowhere_is_passed_over_and_named(
    lab: SessionLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI4S_WORKER_LISTEN", "0.0.0.0:21000-21999")
    monkeypatch.setenv("OPENAI4S_WORKER_ADVERTISE", "127.0.0.9:9, no-such-host.invalid")
    await lab.start()
    (way,) = await events(lab, "dialled")
    connected, *failed = way.split("; ")
    assert connected.startswith("worker 0 connected at tls:")
    assert failed[0] == "tls:127.0.0.9:9: Connection refused"
    assert failed[1].startswith("tls:no-such-host.invalid:21")


@pytest.mark.parametrize(("patience", "grace"), [(2, 60), (60, 2)])
async def test_a_worker_that_cannot_reach_us_is_explained_to_the_person(
    lab: SessionLab, cluster: Path, monkeypatch: pytest.MonkeyPatch, no_process_left: Any, patience: int, grace: int
) -> None:
    """Whoever loses patience first, the server or the worker."""
    rewrite(cluster, UNREACHABLE.format(patience=patience, grace=grace))
    monkeypatch.setenv("OPENAI4S_WORKER_ADVERTISE", "127.0.0.9:9")
    monkeypatch.setattr(
        "openai4s_provisioner.gateway.worker_gateway.own_addresses", lambda: ()
    )  # a machine of which no address reaches us
    with pytest.raises(Exception, match="its worker did not connect in time") as caught:
        await lab.start()
    assert "tls:127.0.0.9:9: Connection refused" in str(caught.value)


async def test_a_profile_that_needs_the_network_is_refused_where_no_port_is_open(
    lab: SessionLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI4S_WORKER_LISTEN")
    with pytest.raises(Exception, match=r"this server listens on no port\. Set OPENAI4S_WORKER_LISTEN"):
        await lab.start()
    assert not OpenAI4S().frozen().state_dir.exists()


@pytest.mark.parametrize(
    ("listen", "advertise", "why"),
    [
        ("login1", "", "names the host login1 but no port"),
        ("9099-9000", "", "is a range that ends before it begins"),
        ("203.0.113.77:9000", "", "is not an address of this machine"),
        ("21000-21999", "login1:http", "neither a number nor a range"),
        ("", "login1", "worker_advertise is set, but no port is open"),
    ],
)
async def test_a_wrong_setting_is_the_sentence_that_the_person_reads(
    lab: SessionLab, monkeypatch: pytest.MonkeyPatch, listen: str, advertise: str, why: str
) -> None:
    monkeypatch.setenv("OPENAI4S_WORKER_LISTEN", listen)
    monkeypatch.setenv("OPENAI4S_WORKER_ADVERTISE", advertise)
    with pytest.raises(Exception, match=why):
        await lab.start()


async def test_a_running_worker_is_told_where_the_server_is(lab: SessionLab) -> None:
    await lab.start()
    situation = await lab.situation()
    running = lab.control._running
    assert running is not None
    record = OpenAI4S().frozen().exchange_dir / "attempts" / situation.allocation.allocation_id / ADDRESS_RECORD
    at_first = json.loads(record.read_text())
    record.unlink()
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(running._address_keeper.refresh(), lab.control._loop))
    content = json.loads(record.read_text())
    assert content == at_first
    assert content["addresses"] == list(running.gateway.network_addresses)
    assert content["certificate_sha256"] == running.gateway.certificate_sha256
    assert os.stat(record).st_mode & 0o777 == 0o600


async def test_the_trait_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI4S_WORKER_ADVERTISE", "one, two")
    assert OpenAI4S().frozen().worker_advertise == ("one", "two")
    traits = {"worker_listen": "9000", "worker_advertise": ["three"]}
    configured = OpenAI4S(config=Config({"OpenAI4S": traits})).frozen()
    assert (configured.worker_listen, configured.worker_advertise) == ("9000", ("three",))


async def test_two_servers_of_one_person_with_one_range(work: Path, control_planes: None, place: Any) -> None:
    """Two processes' worth of control planes over one state folder: two ports, one certificate, both work."""
    name = kernelspecs.install(KernelSpecManager(), "python3", default_config().profiles["default"]).name
    labs = []
    for number in range(2):
        lab = SessionLab(AsyncIOLoopKernelManager(kernel_name=name), work)
        await lab.start()
        labs.append(lab)
        if number == 0:
            first = lab.control
            ControlPlane._shared.clear()  # the next one is made anew, as in another process
    try:
        for lab in labs:
            assert await lab.value("6 * 7") == "42"
        assert labs[0].control is not labs[1].control
        gateways = [lab.control._running.gateway for lab in labs if lab.control._running is not None]
        ports = {gateway.network_addresses for gateway in gateways}
        assert len(ports) == 2
        assert len({gateway.certificate_sha256 for gateway in gateways}) == 1
    finally:
        for lab in labs:
            assert lab.client is not None
            lab.client.stop_channels()
            await lab.manager.shutdown_kernel(now=True)
        first.stop()
