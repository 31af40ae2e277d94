"""What sessions use, as their workers last told: in memory only, the newest value of every rank.

Nothing is decided on it. What is too old is no longer told, so a broken connection shows nothing instead of the past.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .steady_clock import steady_time

OLD_S = 150.0
_MOST = 2000  # sessions
_MOST_GPUS = 64


@dataclass(frozen=True)
class GpuUsage:
    index: int
    percent: int
    memory_mb: int


@dataclass(frozen=True)
class Usage:
    """Of one session, over all its ranks. `at`: seconds since the Unix epoch."""

    cpu_percent: float  # of one processor: 200 is two of them
    memory_mb: int
    memory_limit_mb: int | None
    gpus: tuple[GpuUsage, ...]
    at: float


class UsageBoard:
    """Written on the control thread; `of` may be asked from any thread."""

    def __init__(self, clock: Callable[[], float] = steady_time) -> None:
        self._clock = clock
        self._known: dict[str, tuple[str, dict[int, Usage]]] = {}

    def note(self, workload_id: str, allocation_id: str, rank: int, told: Mapping[str, Any], limit_mb: int) -> None:
        """A worker's word. `limit_mb`: what the profile allows for each rank; 0 = not stated. Raises ValueError."""
        usage = _understood(told, limit_mb, self._clock())
        known, ranks = self._known.pop(workload_id, (allocation_id, {}))
        self._known[workload_id] = (allocation_id, {**(ranks if known == allocation_id else {}), rank: usage})
        while len(self._known) > _MOST:
            del self._known[next(iter(self._known))]

    def of(self, workload_id: str) -> Usage | None:
        """The newest values of all ranks together; None while none is known."""
        _, ranks = self._known.get(workload_id, ("", {}))
        since = self._clock() - OLD_S
        fresh = [usage for _, usage in sorted(ranks.items()) if usage.at >= since]
        if not fresh:
            return None
        limits = [usage.memory_limit_mb for usage in fresh]
        cards = [card for usage in fresh for card in usage.gpus]
        return Usage(
            cpu_percent=round(sum(usage.cpu_percent for usage in fresh), 1),
            memory_mb=sum(usage.memory_mb for usage in fresh),
            memory_limit_mb=None if None in limits else sum(limit or 0 for limit in limits),
            gpus=tuple(GpuUsage(index, card.percent, card.memory_mb) for index, card in enumerate(cards)),
            at=max(usage.at for usage in fresh),
        )


def _understood(told: Mapping[str, Any], limit_mb: int, now: float) -> Usage:
    """What a worker says is bounded: it runs beside a person's programs."""
    limits = [_number(told.get("memory_limit_mb")), limit_mb or None]
    known = [int(limit) for limit in limits if limit is not None]
    cards = told.get("gpus")
    return Usage(
        cpu_percent=float(_number(told.get("cpu_percent")) or 0.0),
        memory_mb=int(_number(told.get("memory_mb")) or 0),
        memory_limit_mb=min(known, default=None),
        gpus=tuple(
            GpuUsage(index, int(_number(card.get("percent")) or 0), int(_number(card.get("memory_mb")) or 0))
            for index, card in enumerate(cards[:_MOST_GPUS] if isinstance(cards, list) else [])
            if isinstance(card, Mapping)
        ),
        at=now,
    )


def whole(value: object) -> int | None:
    """A whole number of a worker's message; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise ValueError("a usage that is no number")
    return value
