"""Network namespaces for a cluster: a login host and four nodes whose firewall lets the login host reach nothing.

Nothing is put into the machine's own network, and every name carries the cluster's tag. The nodes reach the login host
freely, which is all that a session may need; back, only Slurm's own ports are open.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from .accounts import Account
from .configuration import LOGIN_ADDRESS, NODE_ADDRESSES
from .errors import LabError
from .shape import NODES, Layout, Ports

PLACES = ("login", *NODES)
_SWITCH = "switch"
_FOLDER = Path("/run/netns")
_ADDRESSES = (LOGIN_ADDRESS, *NODE_ADDRESSES)

_FIREWALL = """
table inet fw {{
  chain in {{
    type filter hook input priority 0; policy drop;
    iif lo accept
    ct state established,related accept
    ip saddr {nodes} accept
    ip saddr {login} tcp dport {ports} accept
    meta l4proto tcp reject with tcp reset
  }}
}}
"""


def up(layout: Layout, ports: Ports) -> None:
    _run("ip", "netns", "add", _name(layout, _SWITCH))
    _ip(layout, _SWITCH, "link", "add", "br0", "type", "bridge")
    _ip(layout, _SWITCH, "link", "set", "br0", "up")
    for place, address in zip(PLACES, _ADDRESSES, strict=True):
        _run("ip", "netns", "add", _name(layout, place))
        _ip(layout, place, *f"link add eth0 type veth peer name {place} netns {_name(layout, _SWITCH)}".split())
        _ip(layout, _SWITCH, "link", "set", place, "master", "br0", "up")
        _ip(layout, place, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip(layout, place, "link", "set", "eth0", "up")
        _ip(layout, place, "link", "set", "lo", "up")
    rules = _FIREWALL.format(
        nodes=f"{NODE_ADDRESSES[0]}-{NODE_ADDRESSES[-1]}",
        login=LOGIN_ADDRESS,
        ports=f"{min(ports.nodes)}-{max(ports.nodes)}",
    )
    for node in NODES:
        _run("nsenter", f"--net={_FOLDER}/{_name(layout, node)}", "nft", "-f", "-", text_in=rules)


def down(layout: Layout) -> None:
    for name in list(_left(layout)):
        _run("ip", "netns", "delete", name)


def cut(layout: Layout, node: str) -> None:
    """Pull a node's cable."""
    _ip(layout, _SWITCH, "link", "set", node, "down")


def mend(layout: Layout, node: str) -> None:
    _ip(layout, _SWITCH, "link", "set", node, "up")


def enter(layout: Layout, place: str, account: Account) -> list[str]:
    """What to put before a command so that it runs there as this account. Leaves mounts alone: control groups stay."""
    become = ["--setuid", str(account.uid), "--setgid", str(account.gid)] if account.uid else []
    return ["nsenter", f"--net={_FOLDER}/{_name(layout, place)}", *become, "--"]


def _left(layout: Layout) -> Iterator[str]:
    return (path.name for path in _FOLDER.glob(f"{layout.tag}-*"))


def _name(layout: Layout, place: str) -> str:
    return f"{layout.tag}-{place}"


def _ip(layout: Layout, place: str, *words: str) -> None:
    _run("ip", "-n", _name(layout, place), *words)


def _run(*argv: str, text_in: str = "") -> None:
    done = subprocess.run(argv, input=text_in, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"{' '.join(argv)}: {done.stderr.strip()}")
