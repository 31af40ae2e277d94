"""``jupyter openai4s run KERNEL -- COMMAND``: a task in the session that a kernel holds.

Prints what the task prints while it runs and exits as it did. An interrupt cancels the task and waits for its end.
It submits nothing: without a session there is no task.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from ..live_tasks import output_folder
from ..orchestration.daemons import is_driven
from ..orchestration.errors import Refused
from ..orchestration.models import Task
from ..orchestration.reasons import Reason
from ..orchestration.store import StoreThread, tasks
from ..orchestration.store.sqlite import FILE_NAME
from ..orchestration.tasks import TaskDesk
from ..parts import AdmissionParts
from .cli_batch import print_from
from .cli_settings import add_settings, run_here, settings_of

_LOOK_S = 0.1
_ALIVE_EVERY_S = 2.0


def add_commands(commands: Any) -> None:
    run = commands.add_parser("run", help="run a command in the session that a kernel holds")
    run.add_argument("kernel", metavar="KERNEL", help="the kernel's id or its beginning, or its notebook")
    run.add_argument("--ranks", choices=["first", "all"], default="first", help="where to run it (default: first)")
    add_settings(run)
    run.set_defaults(run=_run, command=None)


def _run(arguments: argparse.Namespace) -> int:
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
            asked = (held.workload_id, getpass.getuser(), arguments.command or [], os.getcwd())
            task = await desk.open(*asked, every_rank=arguments.ranks == "all")
            return await _followed(admitting.store, settings.state_dir, task)
        finally:
            await admitting.stop()

    return run_here(work())


async def _followed(store: StoreThread, state_dir: Path, task: Task) -> int:
    """Until the task is over; its exit status as a shell has it."""
    loop = asyncio.get_running_loop()
    interrupts: asyncio.Queue[int] = asyncio.Queue()
    for signum in (signal.SIGINT, signal.SIGTERM):  # not SIGHUP: a task outlives its terminal
        loop.add_signal_handler(signum, interrupts.put_nowait, signum)
    folders = (str(output_folder(state_dir, task.task_id)),)
    position, next_check = 0, loop.time() + _ALIVE_EVERY_S
    while True:
        now = await store.run(tasks.task, task.task_id)
        assert now is not None
        position = await print_from(folders, position)
        if now.ended_at is not None:
            return _status(now)
        if not interrupts.empty():
            interrupts.get_nowait()
            if now.cancel_asked_at is not None:
                return 130
            await store.run(tasks.cancel, task.task_id, getpass.getuser(), time.time())
        if loop.time() >= next_check:
            next_check = loop.time() + _ALIVE_EVERY_S
            if not await is_driven(store, task.workload_id, time.time()):
                raise Refused.because(Reason.SERVER_GONE)
        await asyncio.sleep(_LOOK_S)


def _status(task: Task) -> int:
    if task.signal is not None:
        why = f": {task.detail}" if task.detail else ""
        print(f"jupyter openai4s: the task ended by signal {task.signal}{why}", file=sys.stderr)
        return 128 + task.signal
    if task.detail or task.exit_code is None:
        print(f"jupyter openai4s: {task.detail or 'the task ended without an exit code'}", file=sys.stderr)
    return 1 if task.exit_code is None else task.exit_code
