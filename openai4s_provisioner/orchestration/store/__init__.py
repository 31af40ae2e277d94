"""The durable store: SQLite behind named statements, on a thread of its own."""

from . import drivers, leases
from .entries import Ending, NewSession
from .rows import DaemonRow, EventRow, LaunchRow, Situation
from .store import Store
from .thread import StoreThread

__all__ = [
    "DaemonRow",
    "Ending",
    "EventRow",
    "LaunchRow",
    "NewSession",
    "Situation",
    "Store",
    "StoreThread",
    "drivers",
    "leases",
]
