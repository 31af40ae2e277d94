"""A throw-away cluster of real Slurm daemons on this machine, for tests, the demo and benchmarks.

Four virtual nodes with pretended GPUs, private ports and sockets, nothing in /etc; as root or as one ordinary user.
It is no part of the product: the wheel leaves it out, and no module of the backend imports it.
"""

from __future__ import annotations

from .accounts import Account
from .cluster import Cluster
from .programs import missing_packages
from .shape import Shape

__all__ = ["Account", "Cluster", "Shape", "missing_packages"]
