"""What a person chose for one session, within what its profile allows. Values, and one judgement; reads nothing.

A choice is kept with its workload, so that whatever follows it, a restart or a start again, uses the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class ResourceChoice:
    """None: as the profile has it. Seconds and MB."""

    walltime_s: int | None = None
    gpus: int | None = None
    memory_mb: int | None = None
    cpus: int | None = None

    @property
    def chosen(self) -> dict[str, Any]:
        """Only what was chosen: whole numbers, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class ResourceLimits:
    """The most that a person may choose. None: what the profile has itself."""

    walltime_s: int | None = None
    gpus: int | None = None
    memory_mb: int | None = None
    cpus: int | None = None


CHOOSABLE = tuple(entry.name for entry in fields(ResourceChoice))
UNBOUNDED_AT_ZERO = frozenset({"walltime_s", "memory_mb"})  # of these, 0 states no limit
_LEAST = {"walltime_s": 60, "gpus": 0, "memory_mb": 1, "cpus": 1}
_UNITS = {"walltime_s": " seconds", "memory_mb": " MB", "gpus": "", "cpus": ""}


def most_of(name: str, own: int, limits: ResourceLimits) -> int:
    """The most that may be chosen, where the profile itself has `own`; 0 may mean without a limit."""
    stated: int | None = getattr(limits, name)
    return own if stated is None else stated


def refusal(choice: ResourceChoice, own: Mapping[str, int], limits: ResourceLimits, profile: str) -> str | None:
    """Why this choice cannot be had, in a sentence that names field, value and limit; None when it can be.

    `own`: what the profile has itself, by name. That may always be chosen, a 0 that states no limit included.
    """
    for name, value in choice.chosen.items():
        unit = _UNITS[name]
        if value == own[name]:
            continue
        if value < _LEAST[name]:
            return f"{name} = {value} is too little: ask for at least {_LEAST[name]}{unit}."
        most = most_of(name, own[name], limits)
        if value > most and not (most == 0 and name in UNBOUNDED_AT_ZERO):
            return f"{name} = {value} is more than profile {profile!r} allows: ask for at most {most}{unit}."
    return None
