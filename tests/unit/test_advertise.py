"""What workers are told to dial: the configured first, then addresses that another machine can use."""

from __future__ import annotations

import pytest

from openai4s_provisioner.gateway.advertise import OwnAddress, advertised, doubts, own_addresses
from openai4s_provisioner.gateway.listen_address import AdvertisedAddress
from openai4s_provisioner.gateway.network_listener import Bound

EVERYWHERE = Bound(("0.0.0.0", "::"), 9000)
LOOPBACK = (OwnAddress("lo", "127.0.0.1"), OwnAddress("lo", "::1"))
LAN, FAST, SIX = OwnAddress("eth0", "10.0.0.5"), OwnAddress("ib0", "10.1.0.5"), OwnAddress("eth0", "2001:db8::5")
BRIDGE, LINK = OwnAddress("docker0", "172.17.0.1"), OwnAddress("eth0", "fe80::1")
HOST = (*LOOPBACK, BRIDGE, LINK, LAN, FAST, SIX)


def test_every_usable_address_is_told_and_no_other() -> None:
    assert advertised(EVERYWHERE, (), HOST) == ("tls:10.0.0.5:9000", "tls:10.1.0.5:9000", "tls:[2001:db8::5]:9000")


def test_configured_ones_come_first_with_their_own_port_and_are_told_once() -> None:
    configured = (AdvertisedAddress("login1", None), AdvertisedAddress("10.1.0.5", None), AdvertisedAddress("nat", 443))
    assert advertised(EVERYWHERE, configured, HOST) == (
        "tls:login1:9000",
        "tls:10.1.0.5:9000",
        "tls:nat:443",
        "tls:10.0.0.5:9000",
        "tls:[2001:db8::5]:9000",
    )


@pytest.mark.parametrize(
    ("bound", "told"),
    [
        (Bound(("0.0.0.0",), 9000), ("tls:10.0.0.5:9000", "tls:10.1.0.5:9000")),
        (Bound(("::",), 9000), ("tls:[2001:db8::5]:9000",)),
        (Bound(("10.1.0.5",), 9001), ("tls:10.1.0.5:9001",)),
        (Bound(("127.0.0.1",), 9000), ("tls:127.0.0.1:9000",)),
        (Bound(("172.17.0.1",), 9000), ("tls:172.17.0.1:9000",)),
    ],
)
def test_only_what_we_listen_on_is_told(bound: Bound, told: tuple[str, ...]) -> None:
    assert advertised(bound, (), HOST) == told


def test_loopback_and_bridges_are_told_only_when_there_is_nothing_else_and_that_is_said() -> None:
    own = (*LOOPBACK, BRIDGE)
    assert set(advertised(EVERYWHERE, (), own)) == {"tls:127.0.0.1:9000", "tls:[::1]:9000", "tls:172.17.0.1:9000"}
    (doubt,) = doubts(EVERYWHERE, (), own)
    assert "which no other machine can reach. Set OpenAI4S.worker_advertise" in doubt
    assert advertised(EVERYWHERE, (AdvertisedAddress("login1", None),), own) == ("tls:login1:9000",)


def test_a_usable_address_raises_no_doubt() -> None:
    assert doubts(EVERYWHERE, (), HOST) == []
    assert doubts(EVERYWHERE, (AdvertisedAddress("10.0.0.5", None),), HOST) == []


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("localhost", "every machine takes it for itself"),
        ("127.0.0.1", "every machine has that one"),
        ("no-such-host.invalid", "cannot look that name up"),
    ],
)
def test_a_configured_address_that_leads_nowhere_else_is_doubted(host: str, why: str) -> None:
    (doubt,) = doubts(EVERYWHERE, (AdvertisedAddress(host, None),), HOST)
    assert doubt.startswith(f"Workers are told to dial {host}, but ")
    assert why in doubt


def test_a_worker_is_not_given_more_addresses_than_it_can_try() -> None:
    many = tuple(OwnAddress("eth0", f"10.0.0.{number}") for number in range(1, 100))
    assert len(advertised(EVERYWHERE, (), many)) == 8


def test_this_machine_has_a_loopback_address() -> None:
    assert "127.0.0.1" in {own.ip for own in own_addresses()}
