"""How every worker begins and ends: its words, its attempt file, its log, its hardening, its scratch folder.

What it does in between is handed in. The attempt file is taken before anything is logged, because it says whether this
process may be here at all; a process whose parent has gone does nothing.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Callable, Protocol, TypeVar, Union

from ..transport.loop import Loop
from .attempt import Attempt, AttemptUnusable, BatchAttempt
from .exit_codes import ExitCode
from .hardening import harden
from .scratch import make_scratch
from .signals import Signals
from .worklog import log_to

_log = logging.getLogger(__name__)
A = TypeVar("A", bound=Union[Attempt, BatchAttempt])


class Runs(Protocol):
    def run(self) -> int:
        """Until its end; the exit code."""

    def end(self, reason: str) -> None:
        """Asked for by a signal."""


def begin(
    role: str,
    argv: list[str],
    take: Callable[[str, int], A],
    serve: Callable[[A, str, str], int],
    orphaned: ExitCode,
) -> int:
    """The exit code of a worker. `serve` gets the attempt, its folder and a scratch folder; `orphaned`: see above."""
    parent = os.getppid()
    if len(argv) != 3 or argv[1] != "--rank" or not argv[2].isdigit():
        sys.stderr.write(f"usage: {role} ATTEMPT_DIR --rank N\n")
        return int(ExitCode.BAD_USAGE)
    folder, rank = argv[0], int(argv[2])
    try:
        attempt = take(folder, rank)
    except AttemptUnusable as error:
        sys.stderr.write(f"{error}\n")
        return int(ExitCode.BAD_ATTEMPT)
    log_to(os.path.join(folder, f"worker-{rank}.log"))
    if not harden(parent):
        _log.error("the process that started this worker has ended already")
        return int(orphaned)
    scratch = make_scratch(attempt.allocation_id, rank)
    try:
        return serve(attempt, folder, scratch.path)
    finally:
        scratch.remove()


def run(loop: Loop, worker: Runs) -> int:
    """Its exit code. Signals ask for its end meanwhile."""
    signals = Signals(loop, worker.end)
    try:
        return worker.run()
    finally:
        signals.close()
