"""What the kernels of running sessions are started with: held in memory only, because it carries secrets (INV-9).

A process that dies takes it along; its sessions are then ended, never started from something that was written down.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .models import KernelLaunch

LaunchBook = dict[str, KernelLaunch]  # by workload id: the start that goes into the attempt's file


def launch_json(launch: KernelLaunch) -> dict[str, Any]:
    """As it travels: in the attempt's file, or in a "launch" message."""
    return {**asdict(launch), "argv": list(launch.argv), "env": dict(launch.env)}
