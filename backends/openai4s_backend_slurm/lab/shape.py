"""What a cluster is to look like, and where its files lie: values only, nothing is started or written here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .accounts import Account

NODES = ("g1", "g2", "c1", "c2")  # two with two GPUs each, two without
GPUS_EACH = 2


@dataclass(frozen=True)
class Shape:
    """`settings` are lines of slurm.conf that replace ours; a value of "" removes the line."""

    accounting: bool = False
    one_user: Account | None = None  # every daemon and every job as this account; None needs root
    cgroups: bool = False  # memory and devices are really limited
    network: bool = False  # a login host and four firewalled nodes, in network namespaces
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """The files of one cluster. `prefix` makes node names unique where the machine keeps things by node name."""

    folder: Path
    tag: str  # of this folder alone
    prefix: str = ""

    @property
    def conf(self) -> Path:
        """What clients name in SLURM_CONF."""
        return self.folder / "conf" / "slurm.conf"

    @property
    def hasty_conf(self) -> Path:
        """The same cluster for a client that gives up after two seconds instead of ten."""
        return self.folder / "conf" / "hasty.conf"

    @property
    def munge_socket(self) -> Path:
        return self.folder / "munge" / "socket"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def database(self) -> Path:
        return self.folder / "db"

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.prefix + node for node in NODES)

    def part(self, name: str) -> Path:
        return self.folder / name


@dataclass(frozen=True)
class Ports:
    controller: int
    nodes: tuple[int, ...]
    accounting: int
    database: int
