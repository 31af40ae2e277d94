"""Tasks: further commands in the allocation that a kernel holds, each in a sandbox of its own like the kernel's.

What a task prints goes to the server in pieces, of which only so many are under way: a task whose output nobody takes
waits, and neither memory nor the link fills up. A task that is known already is not started twice. It never runs a
command outside of a sandbox, and knows nothing of who asked.
"""

from __future__ import annotations

import base64
import logging
from typing import Any, Callable, Optional, Protocol

from .door import Caller, Door
from .output import Output

_log = logging.getLogger(__name__)
_WINDOW_BYTES = 256 * 1024  # of output on its way to the server
_PIECE_BYTES = 32 * 1024
_TAIL_BYTES = 2048
CANCEL_GRACE_S = 5.0  # between SIGTERM and SIGKILL

Event = dict[str, Any]


class Command(Protocol):
    """One command in its sandbox, as this module needs it."""

    def start(self) -> None: ...

    def stop(self, grace_s: float) -> None: ...

    def hold_output(self, hold: bool) -> None: ...

    def close(self) -> None: ...


MakeCommand = Callable[[Optional[Event], Callable[[Event], None], Optional[Output]], Command]


def no_tasks(launch: Event | None, on_event: Callable[[Event], None], output: Output | None) -> Command:
    raise RuntimeError("this worker runs no tasks")


class Tasks:
    """`emit` gets what the server is told; `changed` is called when a task is over."""

    def __init__(
        self,
        make: MakeCommand,
        environment: Callable[[], dict[str, str]],
        emit: Callable[[Event], None],
        changed: Callable[[], None],
        door: Door | None = None,
        make_on_every_rank: MakeCommand = no_tasks,
    ) -> None:
        """`environment`: that of the kernel beside which a task runs. `door`: where programs inside ask for tasks."""
        self._make = make
        self._make_on_every_rank = make_on_every_rank
        self._environment = environment
        self._emit = emit
        self._changed = changed
        self._door = door
        self._known: set[str] = set()
        self._running: dict[str, _Task] = {}
        self._is_ending = False

    @property
    def are_running(self) -> bool:
        return bool(self._running)

    def hear(self, message: Event) -> None:
        """A message of the server about tasks."""
        kind = message["type"]
        task_id = str(message.get("task_id", ""))
        if kind == "task":
            self._start(task_id, message)
        elif kind == "task_refused" and self._door is not None:
            self._door.refused(str(message["request_id"]), str(message["sentence"]))
        elif kind == "task_ack" and task_id in self._running:
            self._running[task_id].acknowledged(int(message["received"]))
        elif kind == "task_cancel" and task_id in self._running:
            self._running[task_id].cancel()
        elif kind == "task_cancel_all":
            self.stop_all()

    def stop_all(self) -> None:
        """End every task, and start none any more."""
        self._is_ending = True
        for task in list(self._running.values()):
            task.cancel()

    def close(self) -> None:
        """Leave nothing behind, reported or not."""
        for task in self._running.values():
            task.discard()
        self._running.clear()

    def _start(self, task_id: str, message: Event) -> None:
        if task_id in self._known:
            return
        self._known.add(task_id)
        if self._is_ending:
            self._emit(_ended(task_id, None, None, "The session was ending."))
            return
        caller = None
        if "request_id" in message and self._door is not None:
            caller = self._door.take(str(message["request_id"]))
            if caller is None:
                self._emit(_ended(task_id, None, None, "What asked for it went away."))
                return
        argv = [str(part) for part in message["argv"]]
        environment = {
            **self._environment(),
            **{str(name): str(value) for name, value in message.get("env", {}).items()},
        }
        launch = {"launch_id": task_id, "argv": argv, "env": environment, "cwd": message["cwd"], "key": ""}
        task = _Task(task_id, self._emit, self._over, caller)
        self._running[task_id] = task
        make = self._make_on_every_rank if message.get("every_rank") is True else self._make
        task.start(make(launch, task.heard, task))

    def _over(self, task_id: str) -> None:
        task = self._running.pop(task_id, None)
        if task is not None:
            task.discard()
        self._changed()


class _Task:
    """One task, and where its output goes: to the server, never more than a window ahead of it."""

    def __init__(
        self,
        task_id: str,
        emit: Callable[[Event], None],
        over: Callable[[str], None],
        caller: Caller | None = None,
    ) -> None:
        """`caller`: who takes the output instead of the server."""
        self._caller = caller
        self._task_id = task_id
        self._emit = emit
        self._over = over
        self._command: Command | None = None
        self._end = b""
        self._sent = 0
        self._received = 0
        self._is_held = False
        self._is_cancelled = False
        self._problem = ""

    def start(self, command: Command) -> None:
        self._command = command
        if self._caller is not None:
            self._caller.flow = command.hold_output
            self._caller.gone = self.cancel
        command.start()

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._command is not None:
            self._command.stop(CANCEL_GRACE_S)

    def discard(self) -> None:
        command, self._command = self._command, None
        if command is not None:
            command.close()

    def acknowledged(self, received: int) -> None:
        self._received = min(max(self._received, received), self._sent)
        if self._is_held and self._sent - self._received <= _WINDOW_BYTES // 2 and self._command is not None:
            self._is_held = False
            self._command.hold_output(False)

    def heard(self, event: Event) -> None:
        kind = event["type"]
        if kind == "isolation" and not event["ok"] and not self._is_cancelled:  # what is ended early proves nothing
            self._problem = str(event["sentence"])
        elif kind == "workspace" and not event["ok"] and not self._is_cancelled:
            self._problem = str(event["detail"])
        elif kind == "kernel_started":
            self._emit({"type": "task_started", "task_id": self._task_id})
        elif kind == "kernel_exited":
            self._tell_end(event)
            self._over(self._task_id)

    def _tell_end(self, event: Event) -> None:
        """Told with the cause: what was found out before, or else what the launcher of several copies said."""
        said = str(event.get("launcher", ""))
        if said and not self._problem and not self._is_cancelled and event["exit_code"] != 0:
            self._problem = f"The launcher said: {said}"
        end = _ended(self._task_id, event["exit_code"], event["signal"], self._problem)
        self._emit(end)
        if self._caller is not None:
            self._caller.flow = lambda hold: None
            self._caller.end(exit_code=end["exit_code"], signal=end["signal"], problem=self._problem)

    # The output of the command (worker.output.Output).

    def feed(self, data: bytes) -> None:
        self._end = (self._end + data)[-_TAIL_BYTES:]
        if self._caller is not None:
            self._caller.feed(data)
            return
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            text = base64.b64encode(piece).decode()
            self._emit({"type": "task_output", "task_id": self._task_id, "data": text})
            self._sent += len(piece)
        if not self._is_held and self._sent - self._received >= _WINDOW_BYTES and self._command is not None:
            self._is_held = True
            self._command.hold_output(True)

    def tail(self) -> str:
        return self._end.decode("utf-8", errors="replace").rstrip()

    def close(self) -> None:
        """No more will come; the end is reported next."""


def _ended(task_id: str, exit_code: int | None, signal: int | None, problem: str) -> Event:
    return {"type": "task_ended", "task_id": task_id, "exit_code": exit_code, "signal": signal, "problem": problem}
