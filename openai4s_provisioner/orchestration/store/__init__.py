"""The durable store: SQLite behind named statements, on a thread of its own."""

from . import batches, drivers, tasks
from .entries import Ending, NewBatch, NewSession
from .rows import DaemonRow, EventRow, LaunchRow, Situation
from .store import Store
from .thread import StoreThread

__all__ = [
    "DaemonRow",
    "Ending",
    "EventRow",
    "LaunchRow",
    "NewBatch",
    "NewSession",
    "Situation",
    "Store",
    "StoreThread",
    "batches",
    "drivers",
    "tasks",
]
