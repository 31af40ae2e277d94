"""The tasks of the sessions that this process drives: handed to their workers; output and end are written down.

Runs on the control thread's loop. A task may be asked for, or cancelled, by another process: that one writes rows, and
this one notices within a moment that the state was changed. It admits nothing and starts nothing itself.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .orchestration.cancelling import ended
from .orchestration.daemons import Daemon
from .orchestration.errors import ProvisionerError
from .orchestration.models import Task
from .orchestration.outbox import Outbox
from .orchestration.private_folder import prepare_folder
from .orchestration.store import Store, StoreThread, tasks
from .orchestration.tasks import TaskDesk
from .orchestration.usage import whole
from .transport.bounded_log import LogWriter

_log = logging.getLogger(__name__)
_LOOK_S = 0.25
_AFTER_TROUBLE_S = 10.0
_COUNT_EVERY_S = 5.0
_KEPT = 50  # ended tasks whose output is kept


def output_folder(state_dir: Path, task_id: str) -> Path:
    return state_dir / "tasks" / task_id


@dataclass
class _Running:
    allocation_id: str
    log: LogWriter | None  # None: its output goes to whoever asked, inside
    cancel_sent: bool = False

    def close(self) -> None:
        if self.log is not None:
            self.log.close()


class LiveTasks:
    def __init__(
        self, store: StoreThread, daemon: Daemon, outbox: Outbox, desk: TaskDesk, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._daemon = daemon
        self._outbox = outbox
        self._desk = desk
        self._clock = clock
        self._running: dict[str, _Running] = {}
        self._inbox: asyncio.Queue[tuple[str, Mapping[str, Any]]] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._seen: tuple[int, int] | None = None
        self._own_writes = 0
        self._next_count = 0.0
        self._handing_over = asyncio.Lock()  # a task asked for from inside is handed over in one way only

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks = [self._loop.create_task(self._watch()), self._loop.create_task(self._work_off())]

    async def stop(self) -> None:
        self._loop = None
        await ended(self._tasks)
        for running in self._running.values():
            running.close()
        self._running.clear()

    def look_again(self) -> None:
        """This process wrote rows itself, which is no change by others. On the loop."""
        self._own_writes += 1

    def worker_message(self, allocation_id: str, message: Mapping[str, Any]) -> None:
        """From any thread."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it closed in between
                loop.call_soon_threadsafe(self._inbox.put_nowait, (allocation_id, message))

    # -- from the rows to the workers ------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            if not self._running:
                await self._daemon.has_work.wait()  # while nothing is driven here, nobody can ask for a task
            try:
                async with self._handing_over:
                    await self._look()
                await self._forget_what_is_over()
            except Exception as error:
                _log.error("the tasks of sessions could not be looked at: %s", error)
                await asyncio.sleep(_AFTER_TROUBLE_S)
            await asyncio.sleep(_LOOK_S)

    async def _look(self) -> None:
        if not self._daemon.is_registered:
            return
        seen = (self._own_writes, await self._store.run(_changes_by_others))
        if seen == self._seen:
            return
        open_now = await self._store.run(tasks.open_tasks, self._daemon.daemon_id)
        settled = [await self._bring_forward(task) for task in open_now]
        if all(settled):  # else look again, whether or not the state changes
            self._seen = seen

    async def _forget_what_is_over(self) -> None:
        """Now and then: a task that went down with its allocation has nobody to report its end."""
        loop = asyncio.get_running_loop()
        if not self._running or loop.time() < self._next_count:
            return
        self._next_count = loop.time() + _COUNT_EVERY_S
        known = set(self._running)
        for task_id in known - {task.task_id for task in await self._store.run(tasks.open_tasks)}:
            if task_id in self._running:
                self._running.pop(task_id).close()

    async def _bring_forward(self, task: Task) -> bool:
        """Hand on what is wished. False: its worker cannot be reached at the moment."""
        if task.sent_at is None:
            if task.cancel_asked_at is not None:
                await self._store.run(
                    tasks.ended, task.task_id, None, None, "It was cancelled before it began.", self._clock()
                )
                return True
            return await self._send(task)
        running = self._running.get(task.task_id)
        if task.cancel_asked_at is None or (running is not None and running.cancel_sent):
            return True
        is_sent = self._outbox.send_if_known(task.allocation_id, 0, {"type": "task_cancel", "task_id": task.task_id})
        if running is not None:
            running.cancel_sent = is_sent
        return is_sent

    async def _send(self, task: Task) -> bool:
        if task.task_id not in self._running:
            in_use = {each.task_id for each in await self._store.run(tasks.open_tasks)} | set(self._running)
            folder = await asyncio.to_thread(make_folder, self._store.state_dir, task.task_id, in_use)
            self._running[task.task_id] = _Running(task.allocation_id, LogWriter(str(folder)))
        message = {"type": "task", **await self._told(task)}
        if not self._outbox.send_if_known(task.allocation_id, 0, message):
            return False
        await self._store.run(tasks.sent, task.task_id, self._clock())
        return True

    async def _told(self, task: Task) -> dict[str, Any]:
        """What the worker needs to know of it; on every rank also which machines these are, the first one first."""
        told = {"task_id": task.task_id, "argv": list(task.argv), "cwd": task.cwd, "every_rank": task.every_rank}
        situation = await self._store.run(Store.situation, task.workload_id) if task.every_rank else None
        if situation is not None:
            told["env"] = {"OPENAI4S_HOSTS": ",".join(worker.host for worker in situation.workers)}
        return told

    # -- from the workers to the rows ------------------------------------------------------------------------------

    async def _work_off(self) -> None:
        while True:
            allocation_id, message = await self._inbox.get()
            try:
                await self._heard(allocation_id, message)
            except Exception:
                _log.exception("a report about a task could not be worked off")

    async def _heard(self, allocation_id: str, message: Mapping[str, Any]) -> None:
        if message.get("type") == "task_request":
            async with self._handing_over:
                await self._asked_from_inside(allocation_id, message)
            return
        task_id = str(message.get("task_id", ""))
        running = self._running.get(task_id)
        if running is None or running.allocation_id != allocation_id:
            _log.warning("dropped a report about a task that is not known")
            return
        kind = message.get("type")
        if kind == "task_output" and running.log is not None:
            await self._output(allocation_id, task_id, running.log, message)
        elif kind == "task_started":
            await self._store.run(tasks.started, task_id, self._clock())
        elif kind == "task_ended":
            running.close()
            del self._running[task_id]
            exit_code, signal = whole(message.get("exit_code")), whole(message.get("signal"))
            problem = str(message.get("problem", ""))
            await self._store.run(tasks.ended, task_id, exit_code, signal, problem, self._clock())

    async def _asked_from_inside(self, allocation_id: str, message: Mapping[str, Any]) -> None:
        """A program in a session asks for a task there: admitted like any other, and answered either way."""
        answer: dict[str, Any] = {"request_id": str(message.get("request_id", ""))}
        allocation = await self._store.run(Store.allocation, allocation_id)
        workload = None if allocation is None else await self._store.run(Store.workload, allocation.workload_id)
        if workload is None:
            return
        try:
            argv = [str(part) for part in message.get("argv", ())]
            asked = (workload.workload_id, workload.owner, argv, str(message.get("cwd", "")))
            task = await self._desk.open(*asked, every_rank=message.get("every_rank") is True)
            self._running[task.task_id] = _Running(allocation_id, None)
            answer |= {"type": "task", **await self._told(task)}
            await self._store.run(tasks.sent, task.task_id, self._clock())
        except ProvisionerError as error:
            answer |= {"type": "task_refused", "sentence": str(error)}
        self._outbox.send(allocation_id, 0, answer)

    async def _output(self, allocation_id: str, task_id: str, log: LogWriter, message: Mapping[str, Any]) -> None:
        try:
            data = base64.b64decode(str(message.get("data", "")), validate=True)
        except binascii.Error:
            _log.warning("dropped a piece of a task's output that is no base64")
            return
        await asyncio.to_thread(log.write, data)
        ack = {"type": "task_ack", "task_id": task_id, "received": log.written}
        self._outbox.send_if_known(allocation_id, 0, ack)


def _changes_by_others(store: Store) -> int:
    return store.db.changes_by_others()


def make_folder(state_dir: Path, task_id: str, in_use: Collection[str]) -> Path:
    """Where the output of a task goes. The oldest go away, but none of a task that is in use, however long it runs."""
    folder = output_folder(state_dir, task_id)
    prepare_folder(folder.parent)
    others = [each for each in folder.parent.iterdir() if each.name not in in_use]
    others.sort(key=lambda each: each.stat().st_mtime, reverse=True)
    for oldest in others[_KEPT:]:
        shutil.rmtree(oldest, ignore_errors=True)
    prepare_folder(folder)
    return folder
