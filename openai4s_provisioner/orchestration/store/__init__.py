"""The durable store: SQLite behind named statements, on a thread of its own."""

from . import batches, drivers, epochs, leases, overview, schedule, tasks
from .entries import Ending, NewBatch, NewEpoch, NewSession, Queued
from .rows import DaemonRow, EventRow, LaunchRow, Situation
from .store import Store
from .thread import StoreThread

__all__ = [
    "DaemonRow",
    "Ending",
    "EventRow",
    "LaunchRow",
    "NewBatch",
    "NewEpoch",
    "NewSession",
    "Queued",
    "Situation",
    "Store",
    "StoreThread",
    "batches",
    "drivers",
    "epochs",
    "leases",
    "overview",
    "schedule",
    "tasks",
]
