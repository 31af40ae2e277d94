"""The worker of a BATCH: runs one command in the sandbox, logs what it prints, and writes down how it ended.

It needs no server: what it must know lies in its attempt file, and what it learnt lies beside it afterwards, durably,
for whoever settles the attempt. It proves sandbox and workspace first, as every session does, and runs nothing when
either fails. It holds no connection and refuses to run a command outside of the sandbox.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from typing import Any

from ..sandbox.spec import SandboxSpec
from ..transport.bounded_log import LogWriter
from ..transport.loop import Loop
from .attempt import BatchAttempt, take_batch
from .exit_codes import ExitCode
from .kernel_maker import KernelMaker
from .record import write_record
from .startup import begin, run

_log = logging.getLogger(__name__)
_END_GRACE_S = 5.0  # for the command, between SIGTERM and SIGKILL
_TAIL_BYTES = 2048
RECORD_NAME = "exit.json"


class BatchWorker:
    """Everything happens in the loop's thread. `run` returns the exit code."""

    def __init__(self, loop: Loop, attempt: BatchAttempt, folder: str, make_kernel: KernelMaker) -> None:
        self._loop = loop
        self._attempt = attempt
        self._folder = folder
        self._output = CommandLog(LogWriter(folder))
        self._command = make_kernel(dict(attempt.launch), self._heard, self._output)
        self._asked = ""
        self._problem: dict[str, str] = {}
        self._started_at: float | None = None
        self._exit_code = ExitCode.UNRECORDED

    def run(self) -> int:
        self._command.start()
        self._loop.run()
        self._command.close()
        return int(self._exit_code)

    def end(self, reason: str) -> None:
        """Stop the command, in its own time at first."""
        if not self._asked:
            _log.info("ending: %s", reason)
            self._asked = reason
            self._command.stop(_END_GRACE_S)

    def _heard(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "isolation" and not event["ok"] and not self._asked:  # what is ended early proves nothing
            self._problem = {"reason": "ISOLATION_UNVERIFIED", "detail": str(event["sentence"])}
        elif kind == "workspace":
            self._workspace(event)
        elif kind == "kernel_started":
            self._started_at = time.time()
            _log.info("the command runs as process %d", event["pid"])
        elif kind == "kernel_exited":
            self._over(event)

    def _workspace(self, event: dict[str, Any]) -> None:
        """Nobody waits for the answer: that the inner read this very nonce, and could write beside it, is the proof."""
        if event["ok"] and event["nonce"] != self._attempt.workspace["nonce"]:
            event = {"ok": False, "detail": "what this machine has at that place is another folder"}
            self._command.stop(0.0)
        if not event["ok"] and not self._asked:
            self._problem = {"reason": "WORKSPACE_UNREACHABLE", "detail": f"{event['detail']}."}
        nonce = os.path.join(self._attempt.workspace["path"], self._attempt.workspace["nonce_name"])
        for path in (nonce, f"{nonce}.rank-{self._attempt.rank}"):
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _over(self, event: dict[str, Any]) -> None:
        self._output.sync()
        record = {
            "version": 1,
            "exit_code": event["exit_code"],
            "signal": event["signal"],
            "asked": self._asked,
            "started_at": self._started_at,
            "ended_at": time.time(),
            **self._problem,
        }
        try:
            write_record(os.path.join(self._folder, RECORD_NAME), record)
            self._exit_code = ExitCode.ENDED
        except OSError as error:
            _log.error("how the command ended could not be written down: %s", error)
        self._loop.stop()


class CommandLog:
    """What a command prints: into a bounded log, and its last words besides."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._end = b""

    def feed(self, data: bytes) -> None:
        self._end = (self._end + data)[-_TAIL_BYTES:]
        self._writer.write(data)

    def tail(self) -> str:
        return self._end.decode("utf-8", errors="replace").rstrip()

    def sync(self) -> None:
        self._writer.sync()

    def close(self) -> None:
        self._writer.close()


def main(argv: list[str]) -> int:
    return begin("batch", argv, take_batch, _serve, ExitCode.UNRECORDED)


def _serve(attempt: BatchAttempt, folder: str, scratch: str) -> int:
    loop = Loop()
    maker = KernelMaker(
        loop,
        spec=SandboxSpec.from_json(attempt.sandbox),
        workspace=attempt.workspace,
        rank=attempt.rank,
        scratch=scratch,
        program=os.path.abspath(sys.argv[0]),
        gpus=attempt.gpus,
    )
    return run(loop, BatchWorker(loop, attempt, folder, maker))
