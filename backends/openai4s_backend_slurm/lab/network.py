"""Network namespaces for a cluster: a login host and four nodes, with a firewall on each.

Nothing is put into the machine's own network, and every name carries the cluster's tag. Nodes reach two ports of the
login host: the controller's, and one for sessions. The login host reaches Slurm's own ports on the nodes, no others.
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
SESSIONS_PORT = 21000  # what a site opens towards its login host
_SWITCH = "switch"
_FOLDER = Path("/run/netns")
_ADDRESSES = (LOGIN_ADDRESS, *NODE_ADDRESSES)

_FIREWALL = """
table inet fw {{
  chain in {{
    type filter hook input priority 0; policy drop;
    iif lo accept
    ct state established,related accept
    {rule}
    meta l4proto tcp reject with tcp reset
  }}
}}
"""

_CLOSED = """
table inet closed {{
  chain in {{
    type filter hook input priority -1;
    tcp dport {port} {verdict}
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
    nodes = f"ip saddr {NODE_ADDRESSES[0]}-{NODE_ADDRESSES[-1]}"
    own = f"ip saddr {LOGIN_ADDRESS} tcp dport {min(ports.nodes)}-{max(ports.nodes)} accept"
    for node in NODES:
        _protect(layout, node, f"{nodes} accept\n    {own}")
    _protect(layout, "login", f"{nodes} tcp dport {{ {ports.controller}, {SESSIONS_PORT} }} accept")


def _protect(layout: Layout, place: str, rule: str) -> None:
    _nft(layout, place, _FIREWALL.format(rule=rule))


def _nft(layout: Layout, place: str, rules: str) -> None:
    _run("nsenter", f"--net={_FOLDER}/{_name(layout, place)}", "nft", "-f", "-", text_in=rules)


def down(layout: Layout) -> None:
    for name in list(_left(layout)):
        _run("ip", "netns", "delete", name)


def cut(layout: Layout, node: str) -> None:
    """Pull a node's cable."""
    _ip(layout, _SWITCH, "link", "set", node, "down")


def mend(layout: Layout, node: str) -> None:
    _ip(layout, _SWITCH, "link", "set", node, "up")


def close_sessions_port(layout: Layout, verdict: str) -> None:
    """The login host's firewall closes for sessions: `drop`, which leaves dials unanswered, or `reject`."""
    said = "reject with tcp reset" if verdict == "reject" else verdict
    open_sessions_port(layout)
    _nft(layout, "login", _CLOSED.format(port=SESSIONS_PORT, verdict=said))


def open_sessions_port(layout: Layout) -> None:
    _nft(layout, "login", "table inet closed\ndelete table inet closed\n")  # made first, so that there is one to delete


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
