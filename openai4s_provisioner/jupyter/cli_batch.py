"""``jupyter openai4s submit | ls | show | logs | stop | wait``: commands and notebooks without a server.

Every call looks after what other calls left running, does one thing, and ends. It prints plain lines; what a program
may want to read goes to stdout and nothing else does.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import shlex
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ..command_app import CommandApp, command_app
from ..orchestration.commands import command_sentence
from ..orchestration.errors import Refused
from ..orchestration.frontdesk import REFUSED
from ..orchestration.models import BatchSpec, Kind, Task
from ..orchestration.reasons import Reason
from ..orchestration.store import Store, tasks
from ..orchestration.store.batches import Listed
from ..orchestration.store.sqlite import FILE_NAME
from ..parts import load_site_config
from ..transport.bounded_log import read_log
from .cli_settings import add_settings, run_here, settings_of
from .command_request import Command, batch_request, chosen_variables, notebook_command

_FOLLOW_S = 0.25
_STOP_WAIT_S = 20.0
_TASK_LOOK_S = 0.2
_A_DAY_S = 24 * 3600.0
_SHOWN_ID = 12


def add_commands(commands: Any) -> None:
    submit = commands.add_parser("submit", help="run a command, or a notebook, in an allocation of its own")
    submit.add_argument("--profile", default="", help="profile of cluster.toml (default: the site's)")
    submit.add_argument("notebook", nargs="?", default="", help="a notebook; for a command write: -- COMMAND ...")
    submit.add_argument("-o", "--output", default="", help="where the notebook's result goes (default: the notebook)")
    submit.add_argument("--kernel", default="", help="kernelspec for the notebook (default: the notebook's own)")
    submit.add_argument("--env", action="append", default=[], help="NAME or NAME=value to pass on (repeatable)")
    _finish(submit, _submit, command=None)
    listing = commands.add_parser("ls", help="what waits or runs, and commands that ended within a day")
    listing.add_argument("--all", action="store_true", help="everything that is remembered")
    _finish(listing, _ls)
    for name, run, words in (
        ("show", _show, "everything known of one workload"),
        ("stop", _stop, "stop a workload"),
        ("wait", _wait, "wait for a command, and exit as it did"),
        ("logs", _logs, "what a command printed"),
    ):
        one = commands.add_parser(name, help=words)
        one.add_argument("id", metavar="ID", help="as 'submit' printed it, or its beginning")
        if name == "logs":
            one.add_argument("-f", "--follow", action="store_true", help="until the command ends")
        _finish(one, run)


def _finish(parser: argparse.ArgumentParser, run: Any, **defaults: Any) -> None:
    add_settings(parser)
    parser.set_defaults(run=run, **defaults)


def _submit(arguments: argparse.Namespace) -> int:
    if (arguments.command is None) == (not arguments.notebook):
        raise Refused(Reason.INVALID_SPEC, "Name a notebook, or put a command behind --; one of the two.")
    if arguments.command is not None:
        command = Command(tuple(arguments.command))
    else:
        command = notebook_command(arguments.notebook, arguments.output or arguments.notebook, arguments.kernel)
    settings = settings_of(arguments)
    config = load_site_config(settings)
    request = batch_request(command, arguments.profile, chosen_variables(arguments.env), settings, config)

    async def submit() -> int:
        async with command_app(settings, request) as app:
            print(await app.batches.submit(request))
        return 0

    return run_here(submit())


def _ls(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    if not (settings.state_dir / FILE_NAME).exists():
        return 0

    async def ls() -> int:
        async with command_app(settings) as app:
            await app.batches.settle()
            for entry in await app.batches.listing(time.time() - _A_DAY_S, arguments.all, 1000):
                print(_line(entry))
            for task in await app.store.run(tasks.open_tasks):
                print(_task_line(task))
        return 0

    return run_here(ls())


def _show(arguments: argparse.Namespace) -> int:
    async def show(app: CommandApp, entry: Listed) -> int:
        now, ended = entry.now, entry.ended
        facts: dict[str, object] = {
            "id": now.workload.workload_id,
            "kind": now.workload.kind,
            "phase": now.workload.phase,
            "wish": now.workload.desired,
            "profile": now.workload.profile,
            "owner": now.workload.owner,
            "folder": _plain(now.workload.spec.workspace),
            "command": _plain(_what(entry)),
            "submitted": _clock(now.workload.created_at),
            "waiting": now.allocation.waiting,
            "started": _clock(ended.started_at) if ended else _clock(now.allocation.granted_at),
            "ended": _clock(ended.ended_at) if ended else _clock(now.allocation.ended_at),
            "exit": _exit(entry),
            "reason": now.workload.reason or "",
            "why": _why(entry),
            "stopped by": now.workload.actor,
            "turned away": await app.store.run(_turned_away, now.workload.workload_id),
            "backend": f"{now.allocation.backend} {now.allocation.handle.value if now.allocation.handle else ''}",
            "backend says": now.allocation.backend_detail,
        }
        for name, value in facts.items():
            if str(value).strip():
                print(f"{name + ':':14}" + "\n".join(map(_plain, str(value).split("\n"))))
        return 0

    return _with_one(arguments, show)


def _turned_away(store: Store, workload_id: str) -> str:
    """Workers that the front desk did not let in: the latest word about each reason."""
    events = [each for each in store.events(workload_id) if each.kind == REFUSED]
    latest = {each.reason: f"{_clock(each.at)} {each.reason}: {each.detail}" for each in events}
    return "; ".join(latest.values())


def _task_line(task: Task) -> str:
    phase = "ENDED" if task.ended_at is not None else "WAITING" if task.started_at is None else "RUNNING"
    code = "-" if task.exit_code is None else str(task.exit_code)
    facts = (task.task_id[:_SHOWN_ID], "TASK", phase, code, f"in {task.workload_id[:_SHOWN_ID]}")
    return "\t".join((*facts, _clock(task.created_at), _plain(shlex.join(task.argv))))


async def _stop_task(app: CommandApp, beginning: str) -> bool:
    """Whether it is a task that is meant; then its end is wished, and whoever drives its session carries that out."""
    if len(beginning) < tasks.SHORTEST_ID:
        return False
    found = [task for task in await app.store.run(tasks.named, beginning) if await _is_mine(app, task)]
    open_ones = [task for task in found if task.ended_at is None]
    if len(open_ones) > 1 or (len(found) > 1 and not open_ones):
        raise Refused(Reason.INVALID_SPEC, f"Several ids begin with {beginning!r}. Give more of it.")
    if not found:
        return False
    task: Task | None = (open_ones or found)[0]
    assert task is not None
    await app.store.run(tasks.cancel, task.task_id, getpass.getuser(), time.time())  # nothing for one that has ended
    deadline = time.monotonic() + _STOP_WAIT_S
    while task is not None and task.ended_at is None and time.monotonic() < deadline:
        await asyncio.sleep(_TASK_LOOK_S)
        task = await app.store.run(tasks.task, task.task_id)
    if task is not None and task.ended_at is None:
        print(f"{task.task_id[:_SHOWN_ID]} will be stopped; the wish is kept", file=sys.stderr)
    elif task is not None:
        print(_task_line(task))
    return True


async def _is_mine(app: CommandApp, task: Task) -> bool:
    """Whoever asked for it: it runs in a session of this account."""
    workload = await app.store.run(Store.workload, task.workload_id)
    return workload is not None and workload.owner == getpass.getuser()


def _stop(arguments: argparse.Namespace) -> int:
    async def stop(app: CommandApp, entry: Listed) -> int:
        workload_id = entry.now.workload.workload_id
        if not entry.now.workload.phase.is_terminal:
            await app.batches.stop(workload_id, getpass.getuser())
            try:
                entry = await asyncio.wait_for(app.batches.wait(workload_id), _STOP_WAIT_S)
            except TimeoutError:
                print(f"{workload_id[:_SHOWN_ID]} will be stopped; the wish is kept", file=sys.stderr)
                return 0
        print(_line(entry))
        return 0

    return _with_one(arguments, stop, instead=_stop_task)


def _wait(arguments: argparse.Namespace) -> int:
    async def wait(app: CommandApp, entry: Listed) -> int:
        entry = await app.batches.wait(_command_of(entry))
        return _status(entry)

    return _with_one(arguments, wait)


def _logs(arguments: argparse.Namespace) -> int:
    async def logs(app: CommandApp, entry: Listed) -> int:
        workload_id = _command_of(entry)
        folders = app.output_folders(workload_id, entry.now.allocation.allocation_id)
        watching = asyncio.ensure_future(app.batches.wait(workload_id)) if arguments.follow else None
        position = 0
        while True:
            is_over = watching is None or watching.done()  # asked first: what was printed before that is read below
            position = await print_from(folders, position)
            if is_over:
                return 0
            assert watching is not None
            await asyncio.wait({watching}, timeout=_FOLLOW_S)

    return _with_one(arguments, logs)


async def print_from(folders: tuple[str, ...], position: int) -> int:
    """Print what is there from `position` on; the new position."""
    while True:
        piece = await asyncio.to_thread(read_log, folders, position)
        if not piece.data:
            return position
        if piece.missed:
            print(f"({piece.missed} bytes of earlier output were dropped)", file=sys.stderr)
        sys.stdout.buffer.write(piece.data)
        sys.stdout.buffer.flush()
        position = piece.position


def _with_one(
    arguments: argparse.Namespace, act: Any, instead: Callable[[CommandApp, str], Awaitable[bool]] | None = None
) -> int:
    """Bring things up to date, find the workload that is meant, and act on it. `instead`: what else it may be."""
    settings = settings_of(arguments)

    async def work() -> int:
        if not (settings.state_dir / FILE_NAME).exists():
            raise Refused(Reason.INVALID_SPEC, f"There is no workload {arguments.id!r}: nothing was ever submitted.")
        async with command_app(settings) as app:
            if instead is not None and await instead(app, arguments.id):
                return 0
            entry = await app.batches.find(arguments.id, getpass.getuser())
            await app.batches.settle()
            status: int = await act(app, await app.batches.look(entry.now.workload.workload_id))
            return status

    return run_here(work())


def _command_of(entry: Listed) -> str:
    workload = entry.now.workload
    if workload.kind is not Kind.BATCH:
        shown = workload.workload_id[:_SHOWN_ID]
        raise Refused(
            Reason.INVALID_SPEC,
            f"{shown} is a session, not a command: what it prints is in its notebook. 'jupyter openai4s show {shown}' "
            "says how it is.",
        )
    return workload.workload_id


def _status(entry: Listed) -> int:
    """As a shell has it: the command's own exit code, or 128 and its signal; 1, with a sentence, for any other end."""
    ended, workload = entry.ended, entry.now.workload
    if ended is None or workload.reason is not None or ended.signal is not None:
        print(f"jupyter openai4s: {workload.phase}: {_why(entry)}", file=sys.stderr)
    if ended is None or ended.reason is not None:
        return 1
    if ended.signal is not None:
        return 128 + ended.signal
    code = ended.exit_code or 0
    return code or (0 if not workload.phase.has_failed else 1)


def _line(entry: Listed) -> str:
    workload = entry.now.workload
    facts = (workload.workload_id[:_SHOWN_ID], workload.kind, workload.phase, _exit(entry) or "-", workload.profile)
    return "\t".join((*facts, _clock(workload.created_at), _plain(_what(entry))))


def _plain(text: str) -> str:
    """One line, whatever a name holds: nothing in it moves the terminal's cursor, or looks like a further line."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _what(entry: Listed) -> str:
    spec = entry.now.workload.spec
    if isinstance(spec, BatchSpec):
        return spec.notebook_path or shlex.join(spec.argv)
    return spec.notebook_path or spec.kernel_name


def _exit(entry: Listed) -> str:
    ended = entry.ended
    if ended is None or ended.reason is not None:
        return ""
    return str(ended.exit_code) if ended.signal is None else f"signal {ended.signal}"


def _why(entry: Listed) -> str:
    workload = entry.now.workload
    sentence = ""
    if workload.reason is not None:
        sentence = command_sentence(workload.reason) if workload.kind is Kind.BATCH else workload.reason.sentence
    return f"{sentence} {workload.reason_detail}".strip()


def _clock(at: float | None) -> str:
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
