"""The worker: one process per rank, outside the sandbox, between the server and the kernels on this machine.

It takes its attempt file, starts the first kernel at once, dials meanwhile, and from then on does what the server
says: launch, signal, stop, relay, end. A lost link is dialled again until the server's grace is over; then everything
stops. It runs no code of a person's, and puts no secret into an argument, the environment or its log.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sys
from collections.abc import Iterable
from dataclasses import replace

from ..sandbox.spec import SandboxSpec
from ..transport.link import Link, LinkSocket
from ..transport.loop import Loop, Timer
from ..transport.room import SpoolRoom
from ..transport.spool import Spool
from ..transport.stream import Stream
from ..wire.errors import ProtocolError
from ..wire.handshake import Welcomed
from ..wire.handshake_lines import RESUME_KEY_BYTES
from .attempt import Attempt, take_attempt
from .commands import make_commands
from .dial import Dialer, DialFailure, Identity
from .door import Door
from .exit_codes import ExitCode
from .kernel_maker import KernelMaker
from .kernels import Event, Kernels, MakeKernel
from .notice import LossNotice
from .rank_steps import RankSteps
from .record import write_record
from .route import Itinerary
from .startup import begin, run
from .tasks import MakeCommand, Tasks, no_tasks
from .usage import UsageWatch

_log = logging.getLogger(__name__)
_END_GRACE_S = 2.0  # for a kernel, between SIGTERM and SIGKILL
_END_LIMIT_S = 10.0  # for everything: kernels gone, last output delivered
_SPOOL_MEMORY_BYTES = 32 * 1024 * 1024


def _failed(failures: Iterable[DialFailure]) -> list[dict[str, str]]:
    return [{"address": each.address, "cause": each.cause} for each in failures]


class Worker:
    """Everything happens in the loop's thread. `run` returns the exit code."""

    def __init__(
        self,
        loop: Loop,
        attempt: Attempt,
        make_kernel: MakeKernel,
        scratch: str,
        make_task: MakeCommand = no_tasks,
        make_step: MakeCommand = no_tasks,
    ) -> None:
        """`make_task` runs a command here, `make_step` on every rank."""
        self._loop = loop
        self._attempt = attempt
        self._room = SpoolRoom(_SPOOL_MEMORY_BYTES, attempt.spool_mb * 1024 * 1024, scratch)
        self._link = Link(loop, self, opens_streams=False)
        self._kernels = Kernels(loop, make_kernel, self._report_kernel, self._make_spool, self._check_ended)
        self._environment: dict[str, str] = {}
        self._door = Door(loop, self._report)
        told = (self._report, self._check_ended, self._door)
        self._tasks = Tasks(make_task, lambda: self._environment, *told, make_step)
        identity = Identity(
            attempt.allocation_id, attempt.rank, attempt.credential, secrets.token_bytes(RESUME_KEY_BYTES)
        )
        itinerary = Itinerary(loop, attempt.addresses, attempt.certificate_sha256, attempt.address_record)
        self._dialer = Dialer(loop, identity, itinerary, lambda: self._link.received, self._connected)
        self._dialer.when_failed = self._leave_word
        self._usage = UsageWatch(loop, self._report, lambda: self._link.is_attached, attempt.gpus)
        self._told_address = ""
        self._grace: Timer | None = None
        self._ending: str | None = None
        self._is_signalled = False
        self._exit_code = ExitCode.ENDED
        self._is_farewell_said = False

    def run(self) -> int:
        """The first kernel starts in parallel with the dialling; what it reports waits in the link."""
        self._launch(self._attempt.launch)
        self._server_away()
        self._loop.run()
        return int(self._exit_code)

    def end(self, reason: str) -> None:
        """Asked for by a signal, which reaches the kernels as well when a whole allocation is ended."""
        self._is_signalled = True
        self._end(reason)

    def _end(self, reason: str) -> None:
        """Stop the kernels, deliver what they said last, say goodbye; all of it bounded."""
        if self._ending is not None:
            return
        _log.info("ending: %s", reason)
        self._ending = reason
        self._tasks.stop_all()
        self._kernels.stop_all(_END_GRACE_S)
        self._loop.call_later(_END_LIMIT_S, self._leave)
        self._check_ended()

    # ---- the link's handler

    def control_received(self, message: Event) -> None:
        kind = message.get("type")
        launch_id = str(message.get("launch_id", ""))
        if kind == "launch" and self._ending is None:
            self._launch(message["launch"])
        elif kind == "signal":
            self._kernels.signal(launch_id, int(message["signum"]))
        elif kind == "stop_kernel":
            self._kernels.stop(launch_id, float(message["grace_s"]))
        elif str(kind).startswith("task"):
            self._tasks.hear(message)
        elif kind == "kept":
            self._door.kept(str(message["request_id"]), str(message["sentence"]))
        elif kind == "end":
            self._end(str(message.get("reason", "")))
        else:
            _log.warning("a message of an unknown kind was ignored")

    def _launch(self, launch: Event | None) -> None:
        if launch is not None:
            self._environment = dict(launch["env"])  # a task runs as the newest kernel does
        self._kernels.launch(launch)
        folder = None if launch is None else self._kernels.folder_of(str(launch["launch_id"]))
        if launch is not None and folder is not None:
            self._door.open(folder, str(launch["launch_id"]))

    def stream_opened(self, stream: Stream) -> None:
        self._kernels.relay(stream)

    def link_lost(self, reason: str) -> None:
        _log.info("link lost: %s", reason)
        if self._link.is_over:
            self._give_up(ExitCode.SERVER_GONE)
        else:
            self._server_away()

    def _report_kernel(self, event: Event) -> None:
        if event["type"] == "kernel_exited" and self._is_signalled:
            event = {**event, "with_worker": True}
        self._report(event)

    def _report(self, event: Event) -> None:
        if not self._link.send_control(event):
            _log.error("too many reports wait for the server; one of kind %s was dropped", event["type"])

    # ---- reaching the server

    def _server_away(self) -> None:
        self._grace = self._loop.call_later(self._attempt.server_grace_s, self._grace_over)
        self._dialer.start()

    def _connected(self, peer: LinkSocket, welcome: Welcomed) -> None:
        if self._grace is not None:
            self._grace.cancel()
        try:
            self._link.attach(peer, welcome.leftover, welcome.peer_received)
            self._link.ask_for_life()
        except ProtocolError as error:
            _log.error("cannot resume: %s", error)
            peer.close()
            self._give_up(ExitCode.SERVER_GONE)
            return
        _log.info("connected at %s, generation %s", self._dialer.reached, welcome.generation)
        self._take_word_back()
        self._tell_way()

    def _leave_word(self) -> None:
        """Who never came through can say why only in the folder that it was made from; later, `_tell_way` says it."""
        if not self._dialer.was_welcomed and self._word:
            with contextlib.suppress(OSError):
                write_record(self._word, {"failed": _failed(self._dialer.failures.values())})

    def _take_word_back(self) -> None:
        if self._word:
            with contextlib.suppress(OSError):
                os.unlink(self._word)

    @property
    def _word(self) -> str:
        """Where it is left; "" where there is no such folder."""
        record = self._attempt.address_record
        return os.path.join(os.path.dirname(record), f"way-{self._attempt.rank}.json") if record else ""

    def _tell_way(self) -> None:
        """Which address led here, and which did not and why; nothing when all is as it was told last."""
        failures, self._dialer.failures = self._dialer.failures, {}
        if failures or self._dialer.reached != self._told_address:
            self._told_address = self._dialer.reached
            failed = _failed(failures.values())
            self._link.send_control({"type": "dialled", "address": self._dialer.reached, "failed": failed})

    def _grace_over(self) -> None:
        _log.error("no server within %g s", self._attempt.server_grace_s)
        self._give_up(ExitCode.SERVER_GONE if self._dialer.was_welcomed else ExitCode.NEVER_REGISTERED)

    def _give_up(self, code: ExitCode) -> None:
        """Nobody is there to deliver to: only the kernels have to be gone."""
        self._exit_code = code
        self._dialer.cancel()
        self._link.close("the server is gone")
        self._end("the server is gone")

    # ---- the end

    def _check_ended(self) -> None:
        if self._ending is None or self._is_farewell_said or self._kernels.are_running or self._tasks.are_running:
            return
        if self._link.is_over:
            self._leave()
        elif not self._kernels.are_relaying:
            self._is_farewell_said = True
            self._report({"type": "ended", "exit_code": int(self._exit_code), "reason": self._ending})
            self._link.when_delivered(self._leave)

    def _leave(self) -> None:
        self._dialer.cancel()
        self._usage.close()
        self._tasks.close()
        self._door.close()
        self._kernels.close()
        self._link.close("ended")
        self._loop.stop()

    def _make_spool(self, launch_id: str, notice: LossNotice) -> Spool:
        def lost(messages: int, size: int, following: bytes) -> bytes:
            _log.warning("%d messages (%d bytes) of output were dropped: nobody read them in time", messages, size)
            self._report({"type": "output_lost", "launch_id": launch_id, "messages": messages, "bytes": size})
            return notice(messages, size, following)

        return Spool(self._room, lost)


def main(argv: list[str]) -> int:
    return begin("worker", argv, take_attempt, _serve, ExitCode.ENDED)


def _serve(attempt: Attempt, folder: str, scratch: str) -> int:
    loop = Loop()
    program = os.path.abspath(sys.argv[0])
    kernel_maker = KernelMaker(
        loop,
        spec=replace(SandboxSpec.from_json(attempt.sandbox), commands=make_commands(scratch)),
        workspace=attempt.workspace,
        rank=attempt.rank,
        scratch=scratch,
        program=program,
        ranks=attempt.ranks,
        gpus=attempt.gpus,
    )
    steps = RankSteps(
        loop,
        prefix=attempt.step_prefix,
        folder=folder,
        ranks=attempt.ranks,
        program=program,
        common={
            "sandbox": attempt.sandbox,
            "workspace": {**attempt.workspace, "nonce_name": ""},
            "gpus": attempt.gpus,
        },
    )
    return run(loop, Worker(loop, attempt, kernel_maker, scratch, kernel_maker, steps))
