"""``jupyter openai4s extend KERNEL --by 1h``: ask that a session end later, in a process of its own.

It asks the backend and writes the new end into the state that the owning server reads. Where the site fixes time
limits it says so in one sentence; it submits nothing and starts nothing.
"""

from __future__ import annotations

import argparse
import getpass
import re
from typing import Any

from ..orchestration.errors import Refused
from ..orchestration.reasons import Reason
from ..orchestration.store.sqlite import FILE_NAME
from ..orchestration.tasks import TaskDesk
from ..parts import AdmissionParts
from .cli_settings import add_settings, run_here, settings_of

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def add_commands(commands: Any) -> None:
    """Add the command to a parser's commands."""
    extend = commands.add_parser("extend", help="let a session run longer than its time limit, where that is allowed")
    extend.add_argument("kernel", metavar="KERNEL", help="the kernel's id or its beginning, or its notebook")
    extend.add_argument("--by", required=True, type=duration_s, metavar="TIME", help="how much longer: 90s, 30m, 1h")
    add_settings(extend)
    extend.set_defaults(run=_extend)


def duration_s(text: str) -> int:
    """Seconds, of a whole number with or without a unit. Raises ArgumentTypeError."""
    parts = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text)
    if parts is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time. Write a whole number with s, m, h or d: 90s, 30m, 1h")
    return int(parts[1]) * _UNITS_S[parts[2] or "s"]


def _extend(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)

    async def work() -> int:
        if not (settings.state_dir / FILE_NAME).exists():
            raise Refused(
                Reason.INVALID_SPEC, f"No kernel {arguments.kernel!r} holds a session: none was ever started."
            )
        admitting = AdmissionParts(settings)
        try:
            desk = TaskDesk(admitting.config, admitting.backends, admitting.store)
            held = await desk.kernel_named(arguments.kernel)
            extended = await admitting.walltime.extend(held.workload_id, arguments.by, getpass.getuser())
            print(extended.sentence)
            return 0
        finally:
            await admitting.stop()

    return run_here(work())
