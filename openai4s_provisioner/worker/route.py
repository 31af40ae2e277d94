"""Where the server may be reached: its addresses, and what each one is in numbers on this machine.

A name service may take long to answer, and a shared file system to show a file, so questions to either are asked in a
thread of their own, one at a time. Without names and record nothing is asked and no thread is made.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from dataclasses import dataclass
from typing import Any, Callable

from ..transport.loop import Loop
from .attempt import read_address_record

PATIENCE_S = 15.0


@dataclass(frozen=True)
class Target:
    """One thing to connect to. `shown` is its number, for messages; "" when the address says it already."""

    address: str
    family: int
    place: Any
    shown: str

    @property
    def is_network(self) -> bool:
        return self.family != socket.AF_UNIX


@dataclass(frozen=True)
class Stop:
    """One address of the route, with what it is here, or why it is nothing."""

    address: str
    targets: tuple[Target, ...]
    cause: str = ""


@dataclass(frozen=True)
class Route:
    """In the order in which to try. `certificate_sha256` is whom to expect where the network leads."""

    stops: tuple[Stop, ...]
    certificate_sha256: str | None


Ready = Callable[[Route], None]


class Itinerary:
    """What the attempt's file says, and later, when the server may have moved, what its record says."""

    def __init__(self, loop: Loop, addresses: tuple[str, ...], certificate_sha256: str | None, record: str) -> None:
        self._loop = loop
        self._addresses = addresses
        self._certificate_sha256 = certificate_sha256
        self._record = record
        self._asking: threading.Thread | None = None
        self._round = 0

    def plan(self, is_fresh: bool, ready: Ready) -> None:
        """Call `ready` with the route, from the loop, soon. `is_fresh`: nothing can have changed since the file."""
        self._round += 1
        record = "" if is_fresh else self._record
        if not record and not any(_needs_lookup(address) for address in self._addresses):
            self._loop.call_soon(ready, self._route(_stops(self._addresses)))
            return
        if self._asking is not None and self._asking.is_alive():
            self._loop.call_later(1.0, ready, self._route(self._without_lookup("the name service does not answer")))
            return
        self._ask(record, ready, self._round)

    def _ask(self, record: str, ready: Ready, round_number: int) -> None:
        def answer(addresses: tuple[str, ...], digest: str | None, stops: tuple[Stop, ...]) -> None:
            if self._round == round_number:
                self._round += 1  # the time-out below is void
                self._addresses, self._certificate_sha256 = addresses, digest
                ready(self._route(stops))

        def ask() -> None:
            found = read_address_record(record) if record else None
            addresses, digest = found or (self._addresses, self._certificate_sha256)
            stops = _stops(addresses)
            try:
                self._loop.call_soon_threadsafe(answer, addresses, digest, stops)
            except RuntimeError:
                return  # the loop is over

        def too_late() -> None:
            if self._round == round_number:
                cause = f"the name service or the file system did not answer within {PATIENCE_S:.0f} s"
                ready(self._route(self._without_lookup(cause)))

        self._asking = threading.Thread(target=ask, name="lookup", daemon=True)
        self._asking.start()
        self._loop.call_later(PATIENCE_S, too_late)

    def _without_lookup(self, cause: str) -> tuple[Stop, ...]:
        """What can be tried without asking anybody; `cause` for the rest."""
        return tuple(Stop(each, (), cause) if _needs_lookup(each) else _stop(each) for each in self._addresses)

    def _route(self, stops: tuple[Stop, ...]) -> Route:
        return Route(stops, self._certificate_sha256)


def _needs_lookup(address: str) -> bool:
    kind, _, place = address.partition(":")
    if kind != "tls":
        return False
    try:
        ipaddress.ip_address(_split(place)[0])
    except ValueError:
        return True
    return False


def _stops(addresses: tuple[str, ...]) -> tuple[Stop, ...]:
    """May block on names; never raises."""
    return tuple(_stop(address) for address in addresses)


def _stop(address: str) -> Stop:
    kind, _, place = address.partition(":")
    if kind == "unix":
        return Stop(address, (Target(address, socket.AF_UNIX, place, ""),))
    if kind != "tls":
        return Stop(address, (), f"unknown kind of address: {kind!r}")
    try:
        host, port = _split(place)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (ValueError, UnicodeError):
        return Stop(address, (), "not an address")
    except OSError as error:
        return Stop(address, (), f"the name cannot be looked up here: {error.strerror}")
    numbers = dict.fromkeys((int(family), where) for family, _, _, _, where in found)
    shown = [str(where[0]) for _, where in numbers]
    return Stop(
        address,
        tuple(
            Target(address, family, where, "" if number == host else number)
            for (family, where), number in zip(numbers, shown)
        ),
    )


def _split(place: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``. Raises ValueError."""
    host, _, port = place.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host:
        raise ValueError(place)
    return host, int(port)
