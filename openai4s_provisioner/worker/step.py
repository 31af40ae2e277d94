"""One rank's copy of a task that runs on every rank: the command in a sandbox of this machine, its lines numbered.

Started by the backend's launcher beside whatever runs here. What it is to run lies in a private file that all copies
read; it holds no connection and no credential, prints to its stdout, and exits as the command did. It refuses to run
a command outside of the sandbox. When its reader is slow, so is the command.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Callable

from ..sandbox.spec import SandboxSpec
from ..transport.loop import Loop
from .attempt import AttemptUnusable, read_private
from .exit_codes import ExitCode
from .hardening import harden
from .kernel_maker import KernelMaker
from .scratch import make_scratch
from .signals import Signals

_USAGE = "usage: step FILE --rank N\n"
_FILE_SHOWS_S = 60.0  # a network file system may show a fresh file late
_LOOK_S = 0.2
_END_GRACE_S = 5.0  # for the command, between SIGTERM and SIGKILL
_PIECE_BYTES = 4096  # written in one go, so that the lines of several ranks do not mix
_AHEAD_BYTES = 256 * 1024  # that the reader has not taken yet
_TAIL_BYTES = 2048
UNCONFINED = 126  # as for a program that cannot be executed


@dataclass(frozen=True)
class StepFile:
    """What all copies of one task are to run."""

    task_id: str
    ranks: int
    workspace: dict[str, Any]
    sandbox: dict[str, Any]
    launch: dict[str, Any] = field(repr=False)
    gpus: int = 0


def read_step(path: str) -> StepFile:
    """Raises AttemptUnusable. Not deleted: the other ranks read it as well."""
    deadline = time.monotonic() + _FILE_SHOWS_S
    while not os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    try:
        return StepFile(**json.loads(read_private(path)))
    except (ValueError, TypeError, RecursionError) as error:
        raise AttemptUnusable(f"{path} cannot be understood ({type(error).__name__})") from None


class RankLines:
    """Whole lines to a descriptor, each behind its rank, never waiting for the reader. `flow(True)`: print no more."""

    def __init__(self, loop: Loop, fd: int, rank: int) -> None:
        self.flow: Callable[[bool], None] = lambda hold: None
        self._loop = loop
        self._fd = fd
        self._mark = f"[{rank}] ".encode()
        self._line = b""
        self._pieces: deque[bytes] = deque()
        self._waiting = 0
        self._end = b""
        self._is_over = False
        os.set_blocking(fd, False)

    def feed(self, data: bytes) -> None:
        self._end = (self._end + data)[-_TAIL_BYTES:]
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._put(self._mark + line + b"\n")
        if len(self._line) >= _PIECE_BYTES:  # no newline in sight
            self._put(self._mark + self._line + b"\n")
            self._line = b""
        self._write()
        if self._waiting > _AHEAD_BYTES:
            self.flow(True)

    def say(self, sentence: str) -> None:
        """A line of our own."""
        self.feed(sentence.encode() + b"\n")

    def tail(self) -> str:
        return self._end.decode("utf-8", errors="replace").rstrip()

    def close(self) -> None:
        """The command has ended; what it left unfinished is a line as well."""
        if self._line:
            self._put(self._mark + self._line + b"\n")
            self._line = b""
            self._write()

    def finish(self, done: Callable[[], None]) -> None:
        """Call `done` once everything is taken."""
        self._done = done
        self._is_over = True
        self._write()

    def _put(self, text: bytes) -> None:
        for start in range(0, len(text), _PIECE_BYTES):
            piece = text[start : start + _PIECE_BYTES]
            if self._pieces and len(self._pieces[-1]) + len(piece) <= _PIECE_BYTES:
                self._pieces[-1] += piece
            else:
                self._pieces.append(piece)
            self._waiting += len(piece)

    def _write(self) -> None:
        try:
            while self._pieces:
                written = os.write(self._fd, self._pieces[0])
                self._waiting -= written
                rest = self._pieces.popleft()[written:]
                if rest:
                    self._pieces.appendleft(rest)
        except BlockingIOError:
            self._loop.watch(self._fd, writable=self._write)
            return
        except OSError:  # nobody reads any more
            self._pieces.clear()
            self._waiting = 0
        self._loop.unwatch(self._fd)
        self.flow(False)
        if self._is_over:
            self._done()


class Step:
    """`run` returns the exit code, as a shell has it."""

    def __init__(self, loop: Loop, launch: dict[str, Any], make: KernelMaker, lines: RankLines) -> None:
        self._loop = loop
        self._lines = lines
        self._command = make(launch, self._heard, lines)
        self._exit_code = UNCONFINED
        self._is_asked = False

    def run(self) -> int:
        self._lines.flow = self._command.hold_output
        self._command.start()
        self._loop.run()
        self._command.close()
        return self._exit_code

    def end(self, why: str) -> None:
        self._is_asked = True
        self._command.stop(_END_GRACE_S)

    def _heard(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind in ("isolation", "workspace") and not event["ok"] and not self._is_asked:
            self._lines.say(str(event.get("sentence") or event.get("detail")))
        elif kind == "kernel_exited":
            if event["signal"] is not None:
                self._exit_code = 128 + int(event["signal"])
            elif event["exit_code"] is not None:
                self._exit_code = int(event["exit_code"])
            self._lines.flow = lambda hold: None
            self._lines.finish(self._loop.stop)


def main(argv: list[str]) -> int:
    parent = os.getppid()
    if len(argv) != 3 or argv[1] != "--rank" or not argv[2].isdigit():
        sys.stderr.write(_USAGE)
        return int(ExitCode.BAD_USAGE)
    rank = int(argv[2])
    try:
        step = read_step(argv[0])
    except AttemptUnusable as error:
        sys.stderr.write(f"[{rank}] {error}\n")
        return int(ExitCode.BAD_ATTEMPT)
    if not harden(parent):
        return int(ExitCode.ENDED)
    scratch = make_scratch(step.task_id, rank)
    try:
        return _run(step, rank, scratch.path)
    finally:
        scratch.remove()


def _run(step: StepFile, rank: int, scratch: str) -> int:
    loop = Loop()
    maker = KernelMaker(
        loop,
        spec=SandboxSpec.from_json(step.sandbox),
        workspace=step.workspace,
        rank=rank,
        scratch=scratch,
        program=os.path.abspath(sys.argv[0]),
        ranks=step.ranks,
        gpus=step.gpus,
    )
    running = Step(loop, step.launch, maker, RankLines(loop, sys.stdout.fileno(), rank))
    signals = Signals(loop, running.end)
    try:
        return running.run()
    finally:
        signals.close()
