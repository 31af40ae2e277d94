"""One kernel in one sandbox, seen from outside: proves, starts, watches, signals and ends it.

A restart is a new one of these. Everything happens in the loop's thread, which must be the process's main thread: the
sandbox dies with the thread that started it. What the inside reports is believed only as far as it can only harm
itself; a pid is signalled only if it descends from this sandbox.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Callable

from ..sandbox.attacks import run_attacks
from ..sandbox.covers import CoveredPlace
from ..sandbox.errors import SandboxError
from ..sandbox.probe import ProbeResult, ProvingGround, as_report, judge
from ..sandbox.remedies import remedy
from ..sandbox.seam import PROGRAM_INSIDE, Sandbox
from ..sandbox.spec import NETWORK_PRIVATE, SandboxSpec
from ..transport.loop import Loop, Timer
from .cover_watch import CoverWatch
from .inner import CHANNELS, is_tcp_only
from .launch_spec import inner_request, spec_for_launch
from .listener import listener_pid
from .output import KernelOutput, Output
from .pipe_writer import PipeWriter
from .process_tree import (
    Process,
    children_of,
    descends_from,
    end_of,
    find_by_namespace_pid,
    lives,
    signal_tree,
)
from .workspace_proof import check_folder

SOCKET_PATH_BYTES = 107  # what the system takes for a unix socket's path
_LONGEST_REPORT_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
_REAP_EVERY_S = 0.01
_REAP_AT_MOST_S = 5.0
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}


class ConfinedKernel:
    """`on_event` gets the messages to the server: isolation, workspace, kernel_started, and last kernel_exited."""

    def __init__(
        self,
        loop: Loop,
        *,
        sandbox: Sandbox,
        spec: SandboxSpec,
        launch: Mapping[str, Any] | None,
        workspace: Mapping[str, Any],
        rank: int,
        scratch: str,
        program: str,
        on_event: Callable[[dict[str, Any]], None],
        output: Output | None = None,
        python: str = sys.executable,
    ) -> None:
        """`launch` None: only isolation and workspace are proven. `workspace` with an empty ``nonce_name``: it is not
        proven again. `scratch`: a private folder with a short path on this machine's disk. `program`: the zipapp."""
        self._loop = loop
        self._sandbox = sandbox
        self._launch = launch
        self._launch_id = str(launch["launch_id"]) if launch is not None else ""
        self._workspace = workspace
        self._rank = rank
        self._python = python
        self._on_event = on_event
        self._folder = os.path.join(scratch, secrets.token_hex(4))
        network = NETWORK_PRIVATE if is_tcp_only(launch) else spec.network  # its ports must be nobody else's
        self._spec = spec_for_launch(replace(spec, network=network), self._folder, scratch, program, python)
        self._scratch = scratch
        self._ground: ProvingGround | None = None
        self._bites: dict[str, bool] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._reports: socket.socket | None = None
        self._unread = b""
        self._output_fd = -1
        self._output = output
        self._exit: dict[str, Any] | None = None
        self._init: Process | None = None  # the first process of the sandbox's pid namespace
        self._mapped_pid: int | None = None
        self._socket_pid: int | None = None
        self._covers: CoverWatch | None = None
        self._is_over = False
        self._timers: list[Timer] = []

    # What the worker asks for.

    def start(self) -> None:
        """Start everything, or report why not. Blocks for the time that a decoy takes to appear (about 0.1 s)."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a sandbox would die with the thread that started it: start it from the main thread")
        missing = check_folder(self._spec.workspace)
        if missing is not None:
            self._emit("workspace", **asdict(missing))
            self._over(missing.detail)
            return
        try:
            self._make_folders()
            self._start_sandbox()
        except (SandboxError, OSError) as error:
            sentence = str(error) if isinstance(error, SandboxError) else remedy(str(error))
            self._refuse(ProbeResult(False, sentence))

    def signal(self, signum: int) -> None:
        """To the kernel itself, and what it started in its process group; never to the sandbox."""
        pid = self.kernel_pid
        if pid is not None:
            signal_tree(pid, signum)

    def stop(self, grace_s: float) -> None:
        """End it: SIGTERM first when there is a grace, and SIGKILL for everything in the sandbox when it is over."""
        if grace_s > 0 and self.kernel_pid is not None:
            self.signal(signal.SIGTERM)
            self._timers.append(self._loop.call_later(grace_s, self._kill))
        else:
            self._kill()

    def hold_output(self, hold: bool) -> None:
        """Stop, or go on, taking what it prints: meanwhile it waits, as for any slow reader."""
        if self._output_fd >= 0:
            self._loop.watch(self._output_fd, readable=None if hold else self._read_output)

    def socket_path(self, channel: str) -> str:
        """Where on this machine the kernel listens for `channel`, once it does."""
        return os.path.join(self._folder, f"k-{CHANNELS.index(channel) + 1}")

    @property
    def kernel_pid(self) -> int | None:
        """The pid, out here, of the process that listens on the kernel's sockets; before that, of its ancestor."""
        if self._process is None or self._is_over:
            return None
        if self._socket_pid is None and not is_tcp_only(self._launch):  # else the inner tells who it is
            found = listener_pid(self.socket_path("control"))
            if found is not None and descends_from(found, self._process.pid):
                self._socket_pid = found
        return self._socket_pid or self._mapped_pid

    def close(self) -> None:
        """Leave nothing behind. Reports nothing any more."""
        self._is_over = True
        for timer in self._timers:
            timer.cancel()
        self._close_ground()
        self._kill()
        if self._process is not None:
            self._wait_for_end(self._process)
        self._close_descriptors()
        shutil.rmtree(self._folder, ignore_errors=True)

    # Starting.

    def _make_folders(self) -> None:
        os.mkdir(self._folder, 0o700)
        os.makedirs(self._spec.private_tmp, mode=0o700, exist_ok=True)
        if self._output is None:
            self._output = KernelOutput(os.path.join(self._scratch, f"kernel-{os.path.basename(self._folder)}.log"))
        longest = self.socket_path("hb")
        if len(os.fsencode(longest)) > SOCKET_PATH_BYTES:
            why = f"a socket's path is limited to {SOCKET_PATH_BYTES} bytes, so set TMPDIR to a shorter folder"
            raise OSError(errno.ENAMETOOLONG, why, longest)

    def _start_sandbox(self) -> None:
        command = [self._python, "-I", "-S", PROGRAM_INSIDE, "inner"]
        request_read, request_write = os.pipe()
        ours, theirs = socket.socketpair()
        output_read, output_write = os.pipe()
        try:
            fds = (request_read, theirs.fileno())
            argv = self._sandbox.wrap(self._spec, [*command, *map(str, fds)], keep_fds=fds)
            self._ground = ProvingGround(
                self._spec, python=self._python, program=self._spec.program, folder=self._scratch, runtime=self._scratch
            )
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output_write,
                stderr=output_write,
                pass_fds=fds,
                env=_ENVIRONMENT,
                cwd="/",
            )
            target = self._ground.target()
            self._bites = run_attacks(target)
        except BaseException:
            for end in (request_write, output_read):
                os.close(end)
            ours.close()
            raise
        finally:
            for end in (request_read, output_write):
                os.close(end)
            theirs.close()
        self._reports, self._output_fd = ours, output_read
        self._listen()
        request = inner_request(self._spec, self._launch, self._workspace, self._rank, target.to_json())
        PipeWriter(self._loop, request_write, request).send()

    def _listen(self) -> None:
        if self._reports is None:
            return
        for end in (self._reports.fileno(), self._output_fd):
            os.set_blocking(end, False)
        self._loop.watch(self._reports.fileno(), readable=self._read_reports)
        self._loop.watch(self._output_fd, readable=self._read_output)

    # What comes out of the sandbox.

    def _read_output(self) -> bool:
        """Whether there may be more."""
        try:
            data = os.read(self._output_fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if self._output is not None:
            self._output.feed(data)
        if not data:
            self._loop.unwatch(self._output_fd)
        return bool(data)

    def _read_reports(self) -> None:
        if self._reports is None:
            return
        try:
            data = self._reports.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.unwatch(self._reports.fileno())
            self._reap(self._loop.now() + _REAP_AT_MOST_S)
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._report(line)
        if len(self._unread) > _LONGEST_REPORT_BYTES:
            self._kill()

    def _report(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            handle = {
                "attacks": self._attacks_tried,
                "workspace": self._workspace_tried,
                "started": self._started,
                "listening": self._listening,
                "exited": self._exited,
            }[message.pop("type")]
            handle(message)
        except (ValueError, KeyError, TypeError, AttributeError):
            self._kill()  # only something that has taken the inner over would send this

    def _attacks_tried(self, message: dict[str, Any]) -> None:
        if self._ground is None:
            return
        self._close_ground()
        self._init = next(iter(children_of(self._process.pid)), None) if self._process is not None else None
        result = judge(self._bites, dict(message["reached"]))
        if result.verified:
            self._emit("isolation", ok=True, sentence="", attacks=as_report(result))
            self._watch_covers()
        else:
            self._refuse(result)

    def _watch_covers(self) -> None:
        if self._init is not None and self._process is not None:
            places = self._sandbox.covered(self._spec)
            self._covers = CoverWatch(self._loop, places, self._init.pid, self._process.pid, self._laid_bare)
            self._covers.start()

    def _laid_bare(self, bare: CoveredPlace) -> None:
        why = f"{bare.place} was replaced while the session ran, and could not be made {bare.cover.value} again"
        self._refuse(ProbeResult(False, why))

    def _workspace_tried(self, message: dict[str, Any]) -> None:
        fields = ("ok", "code", "detail", "nonce", "answer_name")
        self._emit("workspace", **{name: message[name] for name in fields})
        if not message["ok"]:
            self._kill()

    def _started(self, message: dict[str, Any]) -> None:
        if self._process is not None and self._mapped_pid is None:
            self._mapped_pid = find_by_namespace_pid(int(message["pid"]), self._process.pid)
            if self._mapped_pid is not None:
                self._emit("kernel_started", pid=self._mapped_pid)
            elif self._process.poll() is not None:  # else it has ended already, which is reported next
                self._let_go()

    def _listening(self, message: dict[str, Any]) -> None:
        if self._process is not None and self._socket_pid is None:
            self._socket_pid = find_by_namespace_pid(int(message["pid"]), self._process.pid)

    def _exited(self, message: dict[str, Any]) -> None:
        self._exit = {name: None if message[name] is None else int(message[name]) for name in ("exit_code", "signal")}

    # The end.

    def _refuse(self, result: ProbeResult) -> None:
        self._close_ground()
        self._emit("isolation", ok=False, sentence=result.sentence, attacks=as_report(result))
        self._kill()
        if self._reports is None:
            self._over()

    def _kill(self) -> None:
        """End the pid namespace's first process, if there is one yet: its end is complete only after all others'."""
        self._let_go()
        if self._process is None or self._process.poll() is not None:
            return
        if self._init is not None and lives(self._init):
            os.kill(self._init.pid, signal.SIGKILL)
        else:
            self._process.kill()

    def _let_go(self) -> None:
        """The inner ends when nobody holds on to it: its sandbox may have been killed before it could take it along."""
        if self._reports is not None:
            with contextlib.suppress(OSError):  # the inner is gone
                self._reports.shutdown(socket.SHUT_WR)

    def _reap(self, deadline: float) -> None:
        """The inner is gone; its sandbox ends at once, unless something holds it."""
        if self._process is None or self._is_gone(self._process):
            self._over()
            return
        if self._loop.now() > deadline:
            self._process.kill()
        self._timers = [self._loop.call_later(_REAP_EVERY_S, self._reap, deadline)]

    def _is_gone(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() is None:
            return False
        return self._init is None or not lives(self._init)

    def _wait_for_end(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _REAP_AT_MOST_S
        while not self._is_gone(process) and time.monotonic() < deadline:
            time.sleep(_REAP_EVERY_S)
        process.kill()
        process.wait()

    def _over(self, why: str = "") -> None:
        if self._is_over:
            return
        self._is_over = True
        while self._output_fd >= 0 and self._read_output():
            pass
        tail = self._output.tail() if self._output is not None else why
        ended = self._exit or end_of(self._process)
        if self._ground is not None:
            self._close_ground()
            if ended["signal"] is None:  # it ended by itself before it could say whether it is a sandbox at all
                self._emit("isolation", ok=False, sentence=remedy(tail.rpartition("\n")[2]), attacks={})
        self._close_descriptors()
        self._emit("kernel_exited", **ended, tail=tail)

    def _emit(self, kind: str, **fields: Any) -> None:
        message = {"type": kind, **fields}
        if kind != "workspace":
            message["launch_id"] = self._launch_id
        self._on_event(message)

    def _close_ground(self) -> None:
        if self._ground is not None:
            self._ground.close()
            self._ground = None

    def _close_descriptors(self) -> None:
        if self._covers is not None:
            self._covers.close()
        if self._reports is not None:
            self._loop.unwatch(self._reports.fileno())
            self._reports.close()
            self._reports = None
        if self._output_fd >= 0:
            self._loop.unwatch(self._output_fd)
            os.close(self._output_fd)
            self._output_fd = -1
        if self._output is not None:
            self._output.close()
