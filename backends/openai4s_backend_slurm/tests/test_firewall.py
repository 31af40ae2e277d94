"""Nodes behind a firewall, in networks of their own: they reach one port of the server, and the server reaches none."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster, Shape, network
from openai4s_backend_slurm.lab.configuration import LOGIN_ADDRESS, NODE_ADDRESSES
from openai4s_backend_slurm.lab.shape import NODES

from .clocks import CLOCKS, FULL
from .conftest import started
from .people import Person, PersonError

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]
CUT_S = 30 if FULL else 5
PROFILE = 'partition = "cpu"\nnodelist = "c1"'
PORT = str(network.SESSIONS_PORT)
TALK = "import time\nfor i in range({count}): print(i, flush=True); time.sleep(0.1)"
NODE = NODE_ADDRESSES[NODES.index("c1")]


@pytest.fixture(scope="module")
def firewalled(run_mark: str) -> Iterator[Cluster]:
    # By default a node is given up after five minutes of silence; the tests' other clusters do so after ten seconds.
    with started(Shape(network=True, settings={"SlurmdTimeout": "300"})) as cluster:
        yield cluster


@pytest.fixture
def person(firewalled: Cluster, ordinary_user: Any) -> Iterator[Person]:
    with Person(ordinary_user, firewalled, PROFILE, ports=PORT, **CLOCKS) as person:
        yield person


def test_nodes_reach_one_port_of_the_server_and_the_server_reaches_nothing(firewalled: Cluster, person: Person) -> None:
    """What the other tests rest on."""
    person.start()
    reaches = firewalled.can_connect
    assert reaches("c1", LOGIN_ADDRESS, network.SESSIONS_PORT)
    person.ask("run", code="import socket; s = socket.create_server(('', 21001))")
    assert not reaches("login", NODE, 21001)
    assert reaches("c2", NODE, 21001), "it listens, and its neighbour sees it"
    person.ask("shut_down")


def test_a_session_behind_a_firewall(person: Person) -> None:
    person.start()
    assert person.value("6 * 7") == "42"
    sleeping = person.begin("run", code="import time\nprint('sleeps', flush=True)\ntime.sleep(1000)")
    person.printed(sleeping, "sleeps")
    person.ask("interrupt")
    assert person.answer(sleeping)["status"] == "error"
    person.ask("restart")
    person.ask("connect")
    assert person.value("6 * 7") == "42"
    person.ask("shut_down")
    person.ended("USER_CANCELLED")


def test_a_link_that_is_cut_loses_nothing(firewalled: Cluster, person: Person) -> None:
    person.start()
    count = (CUT_S + 3) * 10
    talking = person.begin("run", code=TALK.format(count=count), timeout_s=CUT_S + 120)
    person.printed(talking, "5\n")
    network.cut(firewalled.layout, "c1")
    time.sleep(CUT_S)  # how long the fault lasts
    network.mend(firewalled.layout, "c1")
    answer = person.answer(talking, CUT_S + 120)
    assert answer["printed"].split() == [str(number) for number in range(count)]
    person.ask("shut_down")


def test_a_server_that_nodes_cannot_reach_is_named_with_host_port_and_cause(
    firewalled: Cluster, ordinary_user: Any
) -> None:
    profile = f"{PROFILE}\nregistration_timeout_s = 6"
    with Person(ordinary_user, firewalled, profile, ports="21001", **CLOCKS) as person:
        with pytest.raises(PersonError) as refusal:
            person.ask("start")
        assert f"{LOGIN_ADDRESS}:21001: Connection refused" in str(refusal.value)
