"""Starts one allocation at most once per token (INV-8), from a thread that may wait.

Everything about a token is decided under the receipts' lock; the launch itself holds the token's launch lock, which the
shim inherits, so that nobody ever takes a launch under way for one that never happened.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from openai4s_provisioner.orchestration.errors import CouldNotAsk
from openai4s_provisioner.orchestration.models import ExternalHandle
from openai4s_provisioner.orchestration.ports import (
    AllocationRequest,
    Created,
    Existing,
    Rejected,
    SubmitResult,
    Unknown,
)
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.sandbox.devices import VISIBILITY

from . import shim
from .process_tree import Life, standings
from .receipts import Claim, Receipts, is_token

_INHERITED = frozenset({"PATH", "HOME", "LANG", "USER", "LOGNAME", "SHELL", "TMPDIR", "XDG_RUNTIME_DIR"})
_SHIM = Path(__file__).with_name("shim.py")
_LOOK_AGAIN_S = 0.02
_LOG_TAIL_BYTES = 2000


@dataclass(frozen=True)
class Limits:
    max_concurrent: int = 16  # allocations of this state folder on this machine at once
    kill_after_s: float = 10.0  # between SIGTERM and SIGKILL when an allocation is ended
    launch_timeout_s: float = 30.0  # how long a submission waits for the receipt before it says "unknown"


class Launcher:
    def __init__(self, backend: str, receipts: Receipts, limits: Limits) -> None:
        self._backend = backend
        self._receipts = receipts
        self._limits = limits

    def launch(self, request: AllocationRequest) -> SubmitResult:
        if not is_token(request.token):
            return Rejected(Reason.INVALID_SPEC, f"The submission token {request.token!r} cannot name a file.")
        try:
            answer = self._claim(request)
            if not isinstance(answer, int):
                return answer
            try:
                return self._start(request, answer)
            finally:
                os.close(answer)
        except (OSError, CouldNotAsk) as error:
            return self._failed(request.token, error)

    def _claim(self, request: AllocationRequest) -> int | SubmitResult:
        """The held launch lock of a claim that is durable; or the answer, when there is nothing to launch."""
        token = request.token
        deadline = time.monotonic() + self._limits.launch_timeout_s
        while True:
            with self._receipts.locked():
                receipt, launching = self._receipts.look(token)
                if receipt is not None and receipt.started is not None:
                    return Existing(self._handle(token))
                answer = None if launching else self._claim_anew(request)
            if answer is not None:
                return answer
            if time.monotonic() >= deadline:
                return Unknown(token, "another process has been launching it for too long")
            time.sleep(_LOOK_AGAIN_S)

    def _claim_anew(self, request: AllocationRequest) -> int | SubmitResult | None:
        """Nothing was launched under this token, and nothing is being launched. Needs the receipts' lock."""
        token = request.token
        active = self._count_active(but=token)
        if active >= self._limits.max_concurrent:
            self._receipts.remove(token)
            return self._too_many(active)
        claim = Claim(request.allocation_id, request.workload_id, str(request.attempt_dir), time.time())
        try:
            self._receipts.claim(token, claim)
            return self._receipts.take_launch_lock(token)
        except OSError:
            self._receipts.remove(token)
            raise

    def _too_many(self, active: int) -> Rejected:
        return Rejected(
            Reason.QUOTA_EXCEEDED,
            f"{active} sessions are running on this machine, and {self._limits.max_concurrent} are allowed at once. "
            "Shut one down, or raise max_concurrent in [backends.local] of cluster.toml.",
        )

    def _count_active(self, but: str) -> int:
        launching = 0
        started = []
        for token in self._receipts.tokens():
            receipt, is_launching = self._receipts.look(token)
            if token == but or receipt is None or receipt.ended is not None:
                continue
            if receipt.started is not None:
                started.append(receipt.started)
            elif is_launching:
                launching += 1
        alive = [s for s in standings(started).values() if s.life in (Life.LED, Life.LEADERLESS)]
        return launching + len(alive)

    def _start(self, request: AllocationRequest, lock: int) -> SubmitResult:
        """Start the shim and wait for its receipt. Only here may the outcome stay unknown."""
        token = request.token
        log = self._receipts.log_of(token)
        try:
            with open(log, "ab", opener=_private) as output:
                launcher = subprocess.run(
                    self._shim_argv(request, lock),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd="/",
                    env=_small_environment(request.allocation_id),
                    pass_fds=(lock,),
                    start_new_session=True,  # Ctrl-C in the server's terminal is not meant for it
                    timeout=self._limits.launch_timeout_s,
                    check=False,
                )
        except subprocess.TimeoutExpired:
            return Unknown(token, f"no receipt after {self._limits.launch_timeout_s:g} seconds")
        except OSError as error:  # no process was made
            return self._did_not_start(token, str(error))
        if launcher.returncode == shim.LAUNCHED:
            return Created(self._handle(token))
        if launcher.returncode == shim.ALREADY_LAUNCHED:
            return Existing(self._handle(token))
        if launcher.returncode < 0:
            return Unknown(token, f"the launcher was ended by signal {-launcher.returncode}")
        return self._did_not_start(token, tail(log, _LOG_TAIL_BYTES))

    def _did_not_start(self, token: str, detail: str) -> SubmitResult:
        """The shim ended without a receipt, while we hold its launch lock: nothing runs and nothing will."""
        with self._receipts.locked():
            receipt = self._receipts.read(token)
            if receipt is not None and receipt.started is not None:
                return Created(self._handle(token))
            self._receipts.remove(token)
        sentence = "The session's leading process could not be started on this machine. See the detail, then try again."
        return Rejected(Reason.BACKEND_UNAVAILABLE, sentence, detail)

    def _failed(self, token: str, error: OSError | CouldNotAsk) -> SubmitResult:
        """A definite no only where there is certainly nothing under the token."""
        if isinstance(error, OSError) and self._receipts.is_absent(token):
            sentence = f"The folder {self._receipts.folder} cannot be used ({error.strerror}). Make it writable."
            return Rejected(Reason.BACKEND_UNAVAILABLE, sentence, str(error))
        return Unknown(token, str(error))

    def _shim_argv(self, request: AllocationRequest, lock: int) -> list[str]:
        return [
            *(sys.executable, "-I", "-S", str(_SHIM)),
            *("--folder", str(self._receipts.folder_of(request.token))),
            *("--lock", str(lock)),
            *("--grace-s", str(self._limits.kill_after_s)),
            *("--time-limit-s", str(request.profile.walltime_s)),
            *("--", sys.executable, "-I", *request.program, "--rank", "0"),
        ]

    def _handle(self, token: str) -> ExternalHandle:
        return ExternalHandle(self._backend, token)


def tail(path: Path, size: int) -> str:
    """The last `size` bytes, from the start of a line; empty when there is no such file."""
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - size, 0))
            text = file.read(size).decode(errors="replace")
    except FileNotFoundError:
        return ""
    return text.partition("\n")[2] if end > size else text


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _small_environment(allocation_id: str) -> dict[str, str]:
    """Nothing of the server's environment but what every program needs: tokens and settings stay behind."""
    known = _INHERITED.union(VISIBILITY)
    kept = {name: value for name, value in os.environ.items() if name in known or name.startswith("LC_")}
    return {**kept, shim.MARKER: allocation_id}
