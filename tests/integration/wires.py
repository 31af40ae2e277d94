"""A node behind a firewall, as network namespaces: this machine - router with a stateful firewall - node.

Made by a test and gone with it; needs root, `ip` and `nft`. Nothing of this machine's own network is changed but for
one end of a cable and a route to the far side.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator

_numbers = itertools.count(os.getpid() % 200)
FIREWALL = """
table inet f {
  chain forward {
    type filter hook forward priority 0; policy drop;
    meta l4proto icmpv6 accept
    ct state established,related accept
    tcp flags & (syn | ack) == syn ct state new accept
  }
}
"""


class Wires:
    """`exec_in_node` goes before a command that shall run on the node. Addresses of the server, as the node sees it."""

    def __init__(self, number: int) -> None:
        self._mark = f"o4s{number}"
        self._router, self._node = f"{self._mark}-router", f"{self._mark}-node"
        self._near, self._far = (f"10.{net}.{number}" for net in (213, 214))
        self._near6, self._far6 = (f"fd00:{net}:{number}:" for net in (213, 214))
        self.server = f"{self._near}.1"
        self.server6 = f"{self._near6}:1"
        self.second_server = f"{self._near}.9"
        self.exec_in_node = ["ip", "netns", "exec", self._node]

    def lay(self) -> None:
        server_end = f"{self._mark}s"
        for name in (self._router, self._node):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("link", "add", server_end, "type", "veth", "peer", "name", "near", "netns", self._router)
        _ip("-n", self._node, "link", "add", "n0", "type", "veth", "peer", "name", "far", "netns", self._router)
        self._address([], server_end, f"{self.server}/24", f"{self.server6}/64")
        self._address(["-n", self._router], "near", f"{self._near}.2/24", f"{self._near6}:2/64")
        self._address(["-n", self._router], "far", f"{self._far}.2/24", f"{self._far6}:2/64")
        self.give_node_addresses(v4=True)
        _ip("route", "add", f"{self._far}.0/24", "via", f"{self._near}.2")
        _ip("-6", "route", "add", f"{self._far6}:/64", "via", f"{self._near6}:2")
        self._set("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        self.run_in_router("nft", "-f", "-", given=FIREWALL)

    def cut(self) -> None:
        for name in (self._node, self._router):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)

    def give_node_addresses(self, *, v4: bool) -> None:
        """Anew; without `v4`, the node has IPv6 only."""
        _ip("-n", self._node, "addr", "flush", "dev", "n0")
        near = ["-n", self._node]
        self._address(near, "n0", *([f"{self._far}.1/24"] if v4 else []), f"{self._far6}:1/64")
        if v4:
            _ip(*near, "route", "add", "default", "via", f"{self._far}.2")
        _ip(*near, "-6", "route", "replace", "default", "via", f"{self._far6}:2")

    def forget_idle_flows_after(self, seconds: int) -> None:
        """As firewalls do; a packet in the middle of an unknown flow then passes no more."""
        self._set(
            f"net.netfilter.nf_conntrack_tcp_timeout_established={seconds}",
            f"net.netfilter.nf_conntrack_tcp_timeout_unacknowledged={seconds}",
            "net.netfilter.nf_conntrack_tcp_loose=0",
        )

    def drop_towards(self, address: str) -> None:
        self.run_in_router("nft", "insert", "rule", "inet", "f", "forward", "ip", "daddr", address, "drop")

    def power(self, on: bool) -> None:
        """The node's only interface: without it, nothing of a connection's end is ever heard."""
        _ip("-n", self._node, "link", "set", "n0", "up" if on else "down")
        if on:
            self.give_node_addresses(v4=True)

    def add_address(self, address: str) -> None:
        _ip("addr", "add", f"{address}/24", "dev", f"{self._mark}s")

    def move_server(self, old: str, new: str) -> None:
        self.add_address(new)
        _ip("addr", "del", f"{old}/24", "dev", f"{self._mark}s")
        _ip("addr", "replace", f"{new}/24", "dev", f"{self._mark}s")  # the kernel may take it along with the first one
        _ip("route", "replace", f"{self._far}.0/24", "via", f"{self._near}.2")

    def run_in_router(self, *command: str, given: str | None = None) -> None:
        subprocess.run(
            ["ip", "netns", "exec", self._router, *command], input=given, text=True, check=True, capture_output=True
        )

    def _set(self, *settings: str) -> None:
        self.run_in_router("sysctl", "-qw", *settings)

    def _address(self, where: list[str], device: str, *addresses: str) -> None:
        for address in addresses:
            _ip(*where, "addr", "add", address, "dev", device, *(["nodad"] if ":" in address else []))
        _ip(*where, "link", "set", device, "up")


@contextlib.contextmanager
def laid_wires() -> Iterator[Wires]:
    wires = Wires(next(_numbers) % 250)
    try:
        wires.lay()
        yield wires
    finally:
        wires.cut()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
