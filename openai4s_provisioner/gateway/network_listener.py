"""Listening on the network: every address that one setting means, all on the same port, the first free of its range.

Several servers of several people share a host, so a port that is taken is nothing but a reason to try the next one.
What cannot be bound at all is refused with one sentence that names address and cause.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

from ..orchestration.errors import ConfigError, StateError
from ..transport.loop import Loop
from .listen_address import LISTEN, ListenAddress, joined
from .listener import Accepted, Acceptor

_NO_SUCH_FAMILY = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})


@dataclass(frozen=True)
class Bound:
    """Where we listen: addresses in numbers, "0.0.0.0" and "::" for every one, and the port."""

    hosts: tuple[str, ...]
    port: int


class NetworkListener:
    def __init__(self, loop: Loop, where: ListenAddress, backlog: int) -> None:
        """Bind and listen; a connection waits in the backlog until `start`. Raises ConfigError or StateError."""
        wanted = _resolve(where)
        self.bound, sockets = _bind_first_free(where, wanted, backlog)
        self._acceptors = [Acceptor(loop, each, joined(where.host, self.bound.port)) for each in sockets]

    def start(self, accepted: Accepted) -> None:
        for acceptor in self._acceptors:
            acceptor.start(accepted)

    def close(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()


def _resolve(where: ListenAddress) -> list[tuple[socket.AddressFamily, str]]:
    if not where.host:
        return [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")]  # noqa: S104  # what the setting says
    try:
        found = socket.getaddrinfo(where.host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            f"OpenAI4S.{LISTEN} names the host {where.host}, which this machine cannot look up ({error.strerror}). "
            "Name an address of this machine, or the port alone."
        ) from None
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def _bind_first_free(
    where: ListenAddress, wanted: list[tuple[socket.AddressFamily, str]], backlog: int
) -> tuple[Bound, list[socket.socket]]:
    for port in range(where.first_port, where.last_port + 1):
        try:
            opened = _bind_all(wanted, port, backlog, is_choosy=bool(where.host))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            raise _cannot(where, port, error) from error
        return Bound(tuple(host for host, _ in opened), port), [listening for _, listening in opened]
    ports = str(where.first_port)
    if where.last_port > where.first_port:
        ports = f"{ports} to {where.last_port}"
    raise StateError(
        f"OpenAI4S.{LISTEN}: no port of {ports} is free on {where.host or 'this machine'}. "
        "Give a wider range, or end what listens there."
    )


def _bind_all(
    wanted: list[tuple[socket.AddressFamily, str]], port: int, backlog: int, is_choosy: bool
) -> list[tuple[str, socket.socket]]:
    """Every address on this port, or none. "Every interface" does without IPv6, or IPv4, where there is none."""
    opened: list[tuple[str, socket.socket]] = []
    try:
        for number, (family, host) in enumerate(wanted):
            try:
                opened.append((host, _listen(family, host, port, backlog)))
            except OSError as error:
                is_last_hope = number == len(wanted) - 1 and not opened
                if is_choosy or is_last_hope or error.errno not in _NO_SUCH_FAMILY:
                    raise
    except OSError:
        for _, listening in opened:
            listening.close()
        raise
    return opened


def _listen(family: socket.AddressFamily, host: str, port: int, backlog: int) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of a former server may linger
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((host, port))
        listening.listen(backlog)  # two that bound at once are told apart here
    except BaseException:
        listening.close()
        raise
    return listening


def _cannot(where: ListenAddress, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(
            f"OpenAI4S.{LISTEN}: {where.host} is not an address of this machine. "
            "Name one that is, or the port alone for all of them."
        )
    if error.errno == errno.EACCES:
        return ConfigError(
            f"OpenAI4S.{LISTEN}: you may not listen on port {port}. Ports below 1024 are the system's: take another."
        )
    place = joined(where.host or "*", port)
    return ConfigError(f"OpenAI4S.{LISTEN}: cannot listen on {place} ({error.strerror}). Name another address or port.")
