"""The first process inside the sandbox: proves the sandbox and the workspace, starts the kernel, reports its end.

Everything it must know arrives through an inherited pipe, so no argv, environment or file of it holds a secret. It has
one thread; of the network it uses at most the sandbox's own loopback. It starts no kernel when one attack reaches its
victim. When it ends, everything inside ends; it ends when the worker lets go of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Callable

from ..sandbox.attacks import Target, run_attacks
from ..sandbox.environment import settled
from ..sandbox.seam import COMMANDS_INSIDE, SHARED_INSIDE
from ..transport.loop import Loop
from .listener import port_listener_pid
from .loopback import FIRST_PORT, LOOPBACK, LoopbackRelay
from .workspace_proof import prove

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
SOCKETS_INSIDE = f"{SHARED_INSIDE}/k"
CONNECTION_FILE = f"{SHARED_INSIDE}/connection.json"

_NONCE_SHOWS_S = 60.0
_ASK_AGAIN_S = 0.5
_LAST_WORDS_S = 2.0  # for what a kernel said last, once it has ended
_NOT_FOUND, _NOT_EXECUTABLE, _UNPROVEN = 127, 126, 3


def main(argv: Sequence[str]) -> int:
    """REQUEST_FD REPORT_FD: reads one JSON object from the one, writes JSON lines to the other."""
    with os.fdopen(int(argv[0]), "rb") as pipe:
        request = json.load(pipe)
    inner = Inner(request, int(argv[1]))
    return inner.run()


class Inner:
    def __init__(self, request: Mapping[str, Any], report_fd: int) -> None:
        self._request = request
        self._report_fd = report_fd
        os.set_inheritable(report_fd, False)
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        self._loop = Loop()
        self._kernel: subprocess.Popen[bytes] | None = None
        self._relay: LoopbackRelay | None = None
        self._is_listener_known = False
        self._workspace_open = bool(request["workspace"].get("nonce_name"))
        self._nonce_deadline = time.monotonic() + _NONCE_SHOWS_S

    def run(self) -> int:
        reached = run_attacks(Target.from_json(self._request["target"]))
        self._report({"type": "attacks", "reached": reached})
        if any(reached.values()):
            return _UNPROVEN
        self._ready_for_signals()
        if self._workspace_open:
            self._prove_workspace()
        launch = self._request["launch"]
        if launch is not None and not self._start_kernel(launch):
            return 0
        if self._kernel is not None or self._workspace_open:
            self._loop.watch(self._wake_read, readable=lambda: self._supervise(self._woken))
            self._loop.watch(self._report_fd, readable=lambda: self._supervise(self._let_go))
            self._loop.run()
        return 0

    def _report(self, message: Mapping[str, Any]) -> None:
        line = memoryview(json.dumps(message).encode() + b"\n")
        while line:
            line = line[os.write(self._report_fd, line) :]

    # Signals and waiting.

    def _ready_for_signals(self) -> None:
        """Whatever started the worker may have had signals ignored or blocked; a kernel would inherit that for good."""
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, lambda *_: None)  # a handler, not "ignore": that one would be inherited
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._forward)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def _forward(self, number: int, _frame: object = None) -> None:
        if self._kernel is not None and self._kernel.returncode is None:
            os.killpg(self._kernel.pid, number)

    def _supervise(self, step: Callable[[], None]) -> None:
        """The loop survives a step that fails; a kernel must not survive its supervision."""
        try:
            step()
        except BaseException:
            self._loop.stop()
            raise

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        code = None if self._kernel is None else self._kernel.poll()
        if code is not None:
            self._loop.unwatch(self._wake_read)
            self._report_end(code)
            self._leave()

    def _let_go(self) -> None:
        """The worker never says anything here: it has closed its end, and nobody supervises us any more."""
        self._forward(signal.SIGKILL)
        self._loop.stop()

    def _leave(self) -> None:
        if self._relay is None:
            self._loop.stop()
        else:
            self._relay.drain(self._loop.stop)
            self._loop.call_later(_LAST_WORDS_S, self._loop.stop)

    # The workspace.

    def _prove_workspace(self) -> None:
        workspace = self._request["workspace"]
        last_try = time.monotonic() >= self._nonce_deadline
        proof = prove(workspace["path"], workspace["nonce_name"], self._request["rank"], last_try=last_try)
        if proof is None:
            self._loop.call_later(_ASK_AGAIN_S, self._supervise, self._prove_workspace)
            return
        self._workspace_open = False
        self._report({"type": "workspace", **asdict(proof)})
        if self._kernel is None and self._request["launch"] is None:
            self._loop.stop()

    # The kernel.

    def _start_kernel(self, launch: Mapping[str, Any]) -> bool:
        if launch["key"]:  # else it is a command: it has no channels
            _write_connection_file(launch)
            if is_tcp_only(launch):
                ports = {f"{SOCKETS_INSIDE}-{number + 1}": FIRST_PORT + number for number in range(len(CHANNELS))}
                self._relay = LoopbackRelay(self._loop, ports, self._reached)
        argv = [part.replace("{connection_file}", CONNECTION_FILE) for part in launch["argv"]]
        folder = launch["cwd"] if os.path.isdir(launch["cwd"]) else self._request["workspace"]["path"]
        marker, _, value = self._request["env_marker"].partition("=")
        environment = {**settled(launch["env"], self._request["home"]), **({marker: value} if marker else {})}
        if os.path.isdir(COMMANDS_INSIDE):
            environment["PATH"] = f"{environment.get('PATH', os.defpath)}:{COMMANDS_INSIDE}"
        try:
            self._kernel = subprocess.Popen(
                argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except (OSError, ValueError) as error:
            what = "the kernel's program" if launch["key"] else "the command"
            sys.stderr.write(f"{what} {argv[0]} cannot be started: {error}\n")
            sys.stderr.flush()
            self._report_end(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE)
            return False
        self._report({"type": "started", "pid": self._kernel.pid})
        return True

    def _reached(self, port: int) -> None:
        """Something answers: who that is tells the kernel from a wrapper around it."""
        if not self._is_listener_known:
            pid = port_listener_pid(port)
            if pid is not None:
                self._is_listener_known = True
                self._report({"type": "listening", "pid": pid})

    def _report_end(self, code: int) -> None:
        """`code` as Popen has it: negative for a signal."""
        ended = {"exit_code": code, "signal": None} if code >= 0 else {"exit_code": None, "signal": -code}
        self._report({"type": "exited", **ended})


def is_tcp_only(launch: Mapping[str, Any] | None) -> bool:
    """Whether this kernel cannot do ipc, so that it must be given a network of its own."""
    return launch is not None and launch.get("transport") == "tcp"


def _write_connection_file(launch: Mapping[str, Any]) -> None:
    transport, ip, first = ("tcp", LOOPBACK, FIRST_PORT) if is_tcp_only(launch) else ("ipc", SOCKETS_INSIDE, 1)
    connection = {
        "transport": transport,
        "ip": ip,
        **{f"{channel}_port": number for number, channel in enumerate(CHANNELS, start=first)},
        "key": launch["key"],
        "signature_scheme": launch["signature_scheme"],
        "kernel_name": launch["kernel_name"],
        **{name: launch[name] for name in ("curve_publickey", "curve_secretkey") if launch.get(name)},
    }
    descriptor = os.open(CONNECTION_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(connection, file)
