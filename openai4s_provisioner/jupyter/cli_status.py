"""``jupyter openai4s status``: the processes that drive workloads, what their control loops did, and where they fail.

It reads the state and the reports of the processes, and changes nothing: it drives and adopts nothing itself.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path
from typing import Any

from ..orchestration.daemons import report_path, seems_dead
from ..orchestration.moments import clock_time
from ..orchestration.pulse_report import PulseReport, read_report
from ..orchestration.store import DaemonRow, Store, drivers
from ..orchestration.store.sqlite import FILE_NAME
from .cli_settings import add_settings, settings_of

_SHOWN_ID = 12


def add_commands(commands: Any) -> None:
    status = commands.add_parser("status", help="what drives sessions and commands, how often it looked, what failed")
    add_settings(status)
    status.set_defaults(run=_status)


def _status(arguments: argparse.Namespace) -> int:
    state_dir = settings_of(arguments).state_dir
    if not (state_dir / FILE_NAME).exists():
        print(f"Nothing was ever started: {state_dir} holds no state.")
        return 0
    with contextlib.closing(Store(state_dir)) as store:
        rows = [(row, drivers.driven(store, row.daemon_id)) for row in drivers.unretired(store)]
    now = time.time()
    shown = 0
    for row, driven in rows:
        is_dead = seems_dead(state_dir, row, now)
        if driven or not is_dead:  # the dead who left nothing are history
            shown += 1
            _tell(state_dir, row, driven, is_dead, now)
    if not shown:
        print("No process drives anything now.")
    return 0


def _tell(state_dir: Path, row: DaemonRow, driven: int, is_dead: bool, now: float) -> None:
    ago = f"beat {max(0.0, now - row.beat_at):.0f} s ago"
    life = f"{ago}; it is gone, and the next process of yours takes over" if is_dead else ago
    print(f"process {row.daemon_id[:_SHOWN_ID]}\t{row.host} pid {row.pid}\tdrives {driven}\t{life}")
    report = read_report(report_path(state_dir, row.daemon_id))
    if report is not None:
        for line in report_lines(report):
            print(f"  {line}")


def report_lines(report: PulseReport) -> list[str]:
    pulse = report.pulse
    lines = [
        f"looked at everything {pulse.turns} times, last in {pulse.last_turn_s:.3f} s; now every {report.period_s:g} s",
        f"steps {pulse.steps}, actions {pulse.actions}, failed {pulse.failed_steps}, unanswered {pulse.unanswered}",
    ]
    if pulse.last_error:
        lines.append(f"last error, {clock_time(pulse.last_error_at)}: {pulse.last_error}")
    if report.silent:
        lines.append(f"does not answer: {', '.join(report.silent)}")
    for each in report.troubles:
        again = f"failed {each.failures} times, again at {clock_time(each.again_at)}"
        lines.append(f"workload {each.workload_id[:_SHOWN_ID]}: {again}: {each.error}")
    return lines
