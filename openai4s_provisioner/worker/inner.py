"""The first process inside the sandbox: proves the sandbox and the workspace, starts the kernel, reports its end.

Everything it must know arrives through an inherited pipe, so no argv, environment or file of it holds a secret. It has
one thread and no network. It starts no kernel when one attack reaches its victim. When it ends, everything inside ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..sandbox.attacks import Target, run_attacks
from ..sandbox.environment import settled
from ..sandbox.seam import COMMANDS_INSIDE, SHARED_INSIDE
from .workspace_proof import prove

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
SOCKETS_INSIDE = f"{SHARED_INSIDE}/k"
CONNECTION_FILE = f"{SHARED_INSIDE}/connection.json"

_NONCE_SHOWS_S = 60.0
_ASK_AGAIN_S = 0.5
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
        self._kernel: subprocess.Popen[bytes] | None = None
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
        if self._request["launch"] is not None and not self._start_kernel(self._request["launch"]):
            return 0
        while self._kernel is not None or self._workspace_open:
            self._wait()
            if self._workspace_open:
                self._prove_workspace()
            if self._kernel is not None and self._has_ended(self._kernel):
                break
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

    def _forward(self, number: int, _frame: object) -> None:
        if self._kernel is not None and self._kernel.returncode is None:
            os.killpg(self._kernel.pid, number)

    def _wait(self) -> None:
        select.select([self._wake_read], [], [], _ASK_AGAIN_S if self._workspace_open else None)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    # The workspace.

    def _prove_workspace(self) -> None:
        workspace = self._request["workspace"]
        last_try = time.monotonic() >= self._nonce_deadline
        proof = prove(workspace["path"], workspace["nonce_name"], self._request["rank"], last_try=last_try)
        if proof is not None:
            self._workspace_open = False
            self._report({"type": "workspace", **asdict(proof)})

    # The kernel.

    def _start_kernel(self, launch: Mapping[str, Any]) -> bool:
        if launch["key"]:  # else it is a command: it has no channels
            _write_connection_file(launch)
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

    def _has_ended(self, kernel: subprocess.Popen[bytes]) -> bool:
        code = kernel.poll()
        if code is None:
            return False
        self._report_end(code)
        return True

    def _report_end(self, code: int) -> None:
        """`code` as Popen has it: negative for a signal."""
        ended = {"exit_code": code, "signal": None} if code >= 0 else {"exit_code": None, "signal": -code}
        self._report({"type": "exited", **ended})


def _write_connection_file(launch: Mapping[str, Any]) -> None:
    connection = {
        "transport": "ipc",
        "ip": SOCKETS_INSIDE,
        **{f"{channel}_port": number for number, channel in enumerate(CHANNELS, start=1)},
        "key": launch["key"],
        "signature_scheme": launch["signature_scheme"],
        "kernel_name": launch["kernel_name"],
        **{name: launch[name] for name in ("curve_publickey", "curve_secretkey") if launch.get(name)},
    }
    descriptor = os.open(CONNECTION_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(connection, file)
