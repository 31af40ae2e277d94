"""Starts a task on every rank, from the first one: the backend's launcher, and what all copies of the task are to run.

The launcher's words come with the attempt; this module puts our own program behind them, never a person's words, which
travel in a private file beside the attempt. It reads what the copies print, and ends the launcher when asked. What the
launcher itself has to say is no output of the task: it comes with the end, as its cause.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any, Callable

from ..transport.loop import Loop, Timer
from .output import Output

_log = logging.getLogger(__name__)
_READ_BYTES = 64 * 1024
_REAP_EVERY_S = 0.02
_COPIES_GRACE_S = 5.0  # more than a copy gives its own command
_LAST_WORDS_BYTES = 1500  # of the launcher

Event = dict[str, Any]


class RankSteps:
    """Makes such tasks. Called as `MakeCommand` of worker.tasks."""

    def __init__(
        self, loop: Loop, *, prefix: Sequence[str], folder: str, ranks: int, program: str, common: Mapping[str, Any]
    ) -> None:
        """`folder`: the attempt's, which every rank sees. `common`: sandbox and workspace, as in the attempt."""
        self._loop = loop
        self._prefix = tuple(prefix)
        self._folder = folder
        self._ranks = ranks
        self._program = program
        self._common = dict(common)

    def __call__(self, launch: Event | None, on_event: Callable[[Event], None], output: Output | None) -> RankStep:
        assert launch is not None
        assert output is not None
        path = os.path.join(self._folder, f"step-{launch['launch_id']}.json")
        content = {"task_id": launch["launch_id"], "ranks": self._ranks, "launch": launch, **self._common}
        argv = [*self._prefix, sys.executable, "-I", self._program, "step", path]
        return RankStep(self._loop, argv, path, json.dumps(content), on_event, output)


class RankStep:
    """One task on every rank (worker.tasks.Command)."""

    def __init__(
        self,
        loop: Loop,
        argv: Sequence[str],
        path: str,
        content: str,
        on_event: Callable[[Event], None],
        output: Output,
    ) -> None:
        self._loop = loop
        self._argv = argv
        self._path = path
        self._content = content
        self._on_event = on_event
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1  # what the copies print
        self._words_pipe = -1  # what the launcher says
        self._words = b""
        self._timers: list[Timer] = []

    def start(self) -> None:
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(self._content)
                file.flush()
                os.fsync(file.fileno())
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self._words = f"the task cannot be started on every rank: {error}".encode()
            self._loop.call_soon(self._ended, None)
            return
        self._pipe = _taken(self._process.stdout)
        self._words_pipe = _taken(self._process.stderr)
        self._loop.watch(self._pipe, readable=self._read)
        self._loop.watch(self._words_pipe, readable=self._read_words)
        self._on_event({"type": "kernel_started"})

    def stop(self, grace_s: float) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
            if grace_s > 0:
                self._timers.append(self._loop.call_later(grace_s + _COPIES_GRACE_S, self._process.kill))

    def hold_output(self, hold: bool) -> None:
        if self._pipe >= 0:
            self._loop.watch(self._pipe, readable=None if hold else self._read)

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._close_pipes()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        try:
            data = os.read(self._pipe, _READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self._output.feed(data)
            return
        self._close_pipe()
        self._reap_after_both()

    def _read_words(self) -> None:
        try:
            data = os.read(self._words_pipe, _READ_BYTES)
        except BlockingIOError:
            return
        self._words = (self._words + data)[-_LAST_WORDS_BYTES:]
        if not data:
            self._close_words_pipe()
            self._reap_after_both()

    def _reap_after_both(self) -> None:
        if self._pipe < 0 and self._words_pipe < 0:
            self._reap()

    def _reap(self) -> None:
        """Whoever holds the other ends has closed them: the launcher ends about now."""
        assert self._process is not None
        code = self._process.poll()
        if code is None:
            self._timers = [self._loop.call_later(_REAP_EVERY_S, self._reap), *self._timers[-1:]]
            return
        _log.info("a task on every rank ended with %d", code)
        self._ended(code)

    def _ended(self, code: int | None) -> None:
        self._output.close()
        words = self._words.decode("utf-8", errors="replace").strip()
        if words:
            _log.info("its launcher said: %s", words)
        ended = {"exit_code": code, "signal": None}
        if code is not None and code < 0:
            ended = {"exit_code": None, "signal": -code}
        self._on_event({"type": "kernel_exited", "tail": self._output.tail(), "launcher": words, **ended})

    def _close_pipes(self) -> None:
        self._close_pipe()
        self._close_words_pipe()

    def _close_pipe(self) -> None:
        if self._pipe >= 0:
            self._loop.unwatch(self._pipe)
            os.close(self._pipe)
            self._pipe = -1

    def _close_words_pipe(self) -> None:
        if self._words_pipe >= 0:
            self._loop.unwatch(self._words_pipe)
            os.close(self._words_pipe)
            self._words_pipe = -1


def _taken(stream: IO[bytes] | None) -> int:
    """A descriptor of our own that does not block."""
    assert stream is not None
    descriptor = os.dup(stream.fileno())
    stream.close()
    os.set_blocking(descriptor, False)
    return descriptor
