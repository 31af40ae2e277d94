"""What the control loop of a process does and where it fails, in a file beside its beat, for a person to read.

A server's loop runs in a process that one cannot look into; ``jupyter openai4s status`` reads these files. They are the
owner's alone, replaced whole with each beat, and gone with their process. Nothing decides on what stands there.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from .pace import Pulse
from .private_folder import replace_private

_LONGEST_BYTES = 1 << 20
_MOST_TROUBLES = 100


@dataclass(frozen=True)
class Trouble:
    """Why a workload's last step failed, and when it is tried again. Times in seconds since the Unix epoch."""

    workload_id: str
    failures: int
    error: str
    again_at: float


@dataclass(frozen=True)
class PulseReport:
    """`silent`: the backends that did not answer their last question."""

    written_at: float
    period_s: float
    pulse: Pulse
    troubles: tuple[Trouble, ...] = ()
    silent: tuple[str, ...] = ()


def write_report(path: Path, report: PulseReport) -> None:
    """Raises OSError."""
    content = asdict(report) | {"troubles": [asdict(each) for each in report.troubles[:_MOST_TROUBLES]]}
    replace_private(path, json.dumps(content).encode())


def read_report(path: Path) -> PulseReport | None:
    """None for one that is not there, or that this version does not understand."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_LONGEST_BYTES))
        return PulseReport(
            written_at=float(found["written_at"]),
            period_s=float(found["period_s"]),
            pulse=Pulse(**found["pulse"]),
            troubles=tuple(Trouble(**each) for each in found["troubles"]),
            silent=tuple(map(str, found["silent"])),
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
