"""What a person may write for where workers dial in: the forms of `worker_listen` and `worker_advertise`.

Pure: text in, a value out, nothing is looked up or bound. Whatever is not a form raises ConfigError with one sentence
that quotes the text, says what is wrong with it and how to write it.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from ..orchestration.errors import ConfigError

LISTEN = "worker_listen"
ADVERTISE = "worker_advertise"

_HIGHEST_PORT = 65535
_PORTS = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?")
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*\.?")
_LOOKS_NUMERIC = re.compile(r"[0-9.]+")


@dataclass(frozen=True)
class ListenAddress:
    """`host` "" = every interface, IPv4 and IPv6. Of the ports, the first free one is taken."""

    host: str
    first_port: int
    last_port: int


@dataclass(frozen=True)
class AdvertisedAddress:
    """Where workers are told to dial. `port` None = the one we listen on."""

    host: str
    port: int | None


def parse_listen(text: str) -> ListenAddress:
    """``port``, ``host:port``, ``[v6]:port``; a port may be a range like 9000-9099. Raises ConfigError."""
    wrong = _Wrong(LISTEN, text, 'Write it as "9000", "host:9000", "[v6]:9000" or with a range, "host:9000-9099".')
    if _PORTS.fullmatch(text):
        return ListenAddress("", *_port_range(text, wrong))
    host, ports = _split(text, wrong)
    if ports is None:
        raise wrong(f"names the host {host} but no port")
    return ListenAddress(host, *_port_range(ports, wrong))


def parse_advertise(text: str) -> AdvertisedAddress:
    """``host``, ``host:port``, ``[v6]`` or ``[v6]:port``. Raises ConfigError."""
    wrong = _Wrong(ADVERTISE, text, 'Write it as "host", "host:9000", "[v6]" or "[v6]:9000".')
    if _PORTS.fullmatch(text):
        raise wrong("names no host")
    host, ports = _split(text, wrong)
    if ports is None:
        return AdvertisedAddress(host, None)
    first, last = _port_range(ports, wrong)
    if first != last:
        raise wrong("is a range of ports, and a worker dials one")
    return AdvertisedAddress(host, first)


def joined(host: str, port: int) -> str:
    """``host:port``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Wrong:
    """Makes the one sentence about a text."""

    def __init__(self, setting: str, text: str, remedy: str) -> None:
        self._setting, self._text, self._remedy = setting, text, remedy

    def __call__(self, why: str) -> ConfigError:
        shown = repr(self._text if len(self._text) <= 80 else f"{self._text[:77]}...")
        return ConfigError(f"OpenAI4S.{self._setting} = {shown} {why}. {self._remedy}")


def _split(text: str, wrong: _Wrong) -> tuple[str, str | None]:
    """Host and ports; None when there is no port."""
    if not text.strip():
        raise wrong("is empty")
    if any(character.isspace() or not character.isprintable() for character in text):
        raise wrong("holds a space or a control character")
    if "/" in text:
        raise wrong("holds a '/'; it is an address and not a URL")
    if text.startswith("["):
        return _split_bracketed(text, wrong)
    if text.count(":") > 1:
        raise wrong("has more than one ':'; an IPv6 address goes into brackets")
    host, colon, ports = text.partition(":")
    return _host(host, wrong), ports if colon else None


def _split_bracketed(text: str, wrong: _Wrong) -> tuple[str, str | None]:
    inside, bracket, rest = text[1:].partition("]")
    if not bracket:
        raise wrong("opens a bracket and does not close it")
    try:
        address = ipaddress.IPv6Address(inside)
    except ValueError:
        raise wrong(f"has {inside!r} in brackets, which is not an IPv6 address") from None
    if address.is_link_local or address.scope_id:
        raise wrong("is an address of one link only, which no other machine can use as it stands")
    if rest and not rest.startswith(":"):
        raise wrong(f"has {rest!r} where ':' and a port belong")
    return str(address), rest[1:] if rest else None


def _host(host: str, wrong: _Wrong) -> str:
    if not host:
        raise wrong("has nothing before the ':'; for every interface, the port alone is enough")
    if host == "*":
        raise wrong("has '*' for a host; for every interface, the port alone is enough")
    if _LOOKS_NUMERIC.fullmatch(host):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise wrong(f"has the host {host!r}, which is not an IPv4 address") from None
    if not _NAME.fullmatch(host):
        raise wrong(f"has the host {host!r}, which cannot be a name")
    return host


def _port_range(text: str, wrong: _Wrong) -> tuple[int, int]:
    found = _PORTS.fullmatch(text)
    if found is None:
        raise wrong(f"has the port {text!r}, neither a number nor a range" if text else "ends where a port belongs")
    first = int(found[1])
    last = first if found[2] is None else int(found[2])
    if first == 0:
        raise wrong("has the port 0; for any free one, give a range")
    if max(first, last) > _HIGHEST_PORT:
        raise wrong(f"has a port above {_HIGHEST_PORT}")
    if last < first:
        raise wrong("is a range that ends before it begins")
    return first, last
