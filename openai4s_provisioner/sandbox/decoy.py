"""The victim of the probe: a process outside every sandbox that owns what a sibling session owns.

A secret in its environment, private folders, a workspace, a credential, listening sockets, namespaces of its own. It
says on stdout where everything is, waits until its stdin ends (which its parent's death brings about), and removes what
it made. It holds nothing of value.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence

from .attacks import Target, started_at
from .errors import SandboxUnavailable

SECRET_VARIABLE = "OPENAI4S_DECOY_SECRET"  # noqa: S105
_START_S = 20
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_PR_SET_PTRACER, _PTRACER_ANY = 0x59616D61, -1
_TOO_LOW = 75
_LOWEST_PID = 64  # below that, a process inside a sandbox may well have the same number


class Decoy:
    """The decoy's process, seen from its parent. `folder`: where files of ours lie; `runtime`: where sockets lie."""

    def __init__(self, command: Sequence[str], folder: str, runtime: str) -> None:
        """`command`: the argv that runs this module's `main`. Returns at once; `target` waits for the decoy."""
        environment = {SECRET_VARIABLE: os.urandom(16).hex()}
        self._process = subprocess.Popen(
            [*command, folder, runtime],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._target: Target | None = None

    def target(self) -> Target:
        """Where the decoy is. Raises SandboxUnavailable when it could not be set up."""
        if self._target is None:
            self._target = Target.from_json(json.loads(self._first_line()))
        return self._target

    def _first_line(self) -> bytes:
        """What the decoy says of itself; when it says nothing, what it complained about is raised."""
        if self._process.stdout is None or self._process.stderr is None:
            raise SandboxUnavailable("the decoy of the isolation probe has no output")
        ready = select.select([self._process.stdout], [], [], _START_S)[0]
        line = self._process.stdout.readline() if ready else b""
        if not line:
            self._end()
            complaint = self._process.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise SandboxUnavailable(complaint or "the decoy of the isolation probe did not start")
        return line

    def _end(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """End the decoy and wait until what it made is gone. May be called more than once."""
        self._end()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def main(argv: Sequence[str]) -> int:
    """The decoy itself: FOLDER RUNTIME."""
    made = [tempfile.mkdtemp(prefix="decoy-", dir=place) for place in argv[:2]]
    try:
        return _with_a_high_pid(lambda: _live(*made))
    finally:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)


def _live(folder: str, runtime: str) -> int:
    secret = os.environ[SECRET_VARIABLE]
    files = {name: os.path.join(folder, name) for name in ("notebook", "credential", ".bashrc")}
    files["temp"] = os.path.join(runtime, "temp")
    for path in files.values():
        with open(path, "w", encoding="ascii") as file:
            file.write(secret)
    unnamed = os.open(os.path.join(folder, "unnamed"), os.O_RDWR | os.O_CREAT, 0o600)
    os.write(unnamed, secret.encode())
    os.unlink(os.path.join(folder, "unnamed"))
    abstract = f"openai4s-decoy-{secret[:8]}"
    os.chdir(runtime)  # a relative address is short enough wherever the folder lies
    listeners = [_listen(address) for address in ("kernel", "worker", "\0" + abstract)]
    os.chdir(folder)
    _own_namespaces()
    target = Target(
        pid=os.getpid(),
        started=started_at(os.getpid()),
        secret=secret,
        workspace_file=files["notebook"],
        credential_file=files["credential"],
        private_temp_file=files["temp"],
        open_file=unnamed,
        login_file=files[".bashrc"],
        sockets={name: os.path.join(runtime, name) for name in ("kernel", "worker")},
        abstract_socket=abstract,
    )
    print(json.dumps(target.to_json()), flush=True)
    sys.stdin.buffer.read()
    for listener in listeners:
        listener.close()
    return 0


def _listen(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(8)
    return listener


def _own_namespaces() -> None:
    """Live as a sibling's kernel does: in a user and a mount namespace that the account owns."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(_PTRACER_ANY), 0, 0, 0)  # so that only the sandbox can stop a tracer
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS) != 0:
        raise SystemExit(f"user namespaces: {os.strerror(ctypes.get_errno())}")


def _with_a_high_pid(live: Callable[[], int]) -> int:
    """Run `live` in this process, or in a child with a number that no process of a fresh sandbox has."""
    if os.getpid() > _LOWEST_PID:
        return live()
    while True:
        child = os.fork()
        if child == 0:
            os._exit(live() if os.getpid() > _LOWEST_PID else _TOO_LOW)
        code = os.waitpid(child, 0)[1] >> 8
        if code != _TOO_LOW:
            return code
