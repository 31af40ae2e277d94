"""Which addresses workers are told to dial: what a person configured first, then this machine's own, in numbers.

Never a name that we made up (a node may resolve it to itself), and never an address that only this machine can use
(loopback, a container bridge, one link only) while there is a better one. What is doubtful is said, not hidden.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psutil

from .listen_address import AdvertisedAddress, joined
from .network_listener import Bound

_MOST = 8  # a worker tries them in turn, and each one that drops packets costs it seconds
_BRIDGES = re.compile(r"(docker|br-|virbr|veth|cni|flannel|cali|podman|lxc|lxd|vmnet|vboxnet|kube)")
_ANYWHERE = {"0.0.0.0": 4, "::": 6}  # noqa: S104


@dataclass(frozen=True)
class OwnAddress:
    """An address of this machine, and the network interface that has it."""

    interface: str
    ip: str

    @property
    def is_for_others(self) -> bool:
        """Whether another machine may be able to use it."""
        address = ipaddress.ip_address(self.ip)
        return not (address.is_loopback or address.is_link_local or _BRIDGES.match(self.interface))


def own_addresses() -> tuple[OwnAddress, ...]:
    """Of the interfaces that are up, the one of the default route first, IPv4 before IPv6."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found: list[OwnAddress] = []
    for name, addresses in psutil.net_if_addrs().items():
        for entry in addresses:
            if name in up and entry.family in (socket.AF_INET, socket.AF_INET6) and "%" not in entry.address:
                found.append(OwnAddress(name, entry.address))
    preferred = _default_route()
    return tuple(sorted(found, key=lambda own: (own.ip not in preferred, ":" in own.ip)))


def advertised(bound: Bound, configured: Iterable[AdvertisedAddress], own: Sequence[OwnAddress]) -> tuple[str, ...]:
    """``tls:host:port`` in the order in which a worker should try them. Pure; never empty."""
    chosen = [joined(each.host, each.port or bound.port) for each in configured]
    usable = [each for each in own if _is_bound(bound, each)]
    for_others = [each for each in usable if each.is_for_others]
    specific = [host for host in bound.hosts if host not in _ANYWHERE]
    hosts = [each.ip for each in for_others] or ([] if chosen else [each.ip for each in usable] or specific)
    chosen += [joined(host, bound.port) for host in hosts]
    return tuple(f"tls:{place}" for place in dict.fromkeys(chosen))[:_MOST]


def doubts(bound: Bound, configured: Sequence[AdvertisedAddress], own: Sequence[OwnAddress]) -> list[str]:
    """One sentence for each reason why a worker on another machine may not reach us. Looks names up."""
    found = []
    for each in configured:
        problem = _problem_of(each.host)
        if problem:
            found.append(f"Workers are told to dial {each.host}, but {problem}.")
    if not configured and not any(each.is_for_others for each in own if _is_bound(bound, each)):
        places = ", ".join(place.removeprefix("tls:") for place in advertised(bound, configured, own))
        found.append(
            f"Workers are told to dial {places}, which no other machine can reach. "
            "Set OpenAI4S.worker_advertise to an address that they can, or listen on another interface."
        )
    return found


def _is_bound(bound: Bound, own: OwnAddress) -> bool:
    family = 6 if ":" in own.ip else 4
    return own.ip in bound.hosts or any(_ANYWHERE.get(host) == family for host in bound.hosts)


def _problem_of(host: str) -> str:
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        return f"this machine cannot look that name up ({error.strerror})"
    if all(ipaddress.ip_address(ip.partition("%")[0]).is_loopback for ip in found):
        shown = ", ".join(sorted(found))
        return f"that is {shown}: every machine takes it for itself" if shown != host else "every machine has that one"
    return ""


def _default_route() -> set[str]:
    """Our addresses towards the rest of the world. Nothing is sent: these are for documentation (RFC 5737, 3849)."""
    found = set()
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))
                found.add(str(probe.getsockname()[0]))
        except OSError:
            continue
    return found
