"""The durable store: SQLite behind named statements, on a thread of its own."""

from . import drivers, epochs, leases
from .entries import Ending, NewEpoch, NewSession
from .rows import DaemonRow, EventRow, LaunchRow, Situation
from .store import Store
from .thread import StoreThread

__all__ = [
    "DaemonRow",
    "Ending",
    "EventRow",
    "LaunchRow",
    "NewEpoch",
    "NewSession",
    "Situation",
    "Store",
    "StoreThread",
    "drivers",
    "epochs",
    "leases",
]
