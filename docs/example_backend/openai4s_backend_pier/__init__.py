"""A small backend: allocations are processes on this machine, each below a leader of its own.

All it knows lies in files, so two of it in two processes agree, and a restarted one finds everything. It keeps no
thread, blocks no loop, and never says "no" where it could not ask.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openai4s_backend_local.isolation import IsolationProof
from openai4s_backend_local.probe import SandboxProbe
from openai4s_provisioner.orchestration.errors import ConfigError, CouldNotAsk
from openai4s_provisioner.orchestration.models import ExternalHandle, ResourceProfile
from openai4s_provisioner.orchestration.ports import (
    AllocationRequest,
    Created,
    Diagnostics,
    Existing,
    IsolationVerdict,
    Observation,
    Observed,
    Rejected,
    SubmitResult,
    Unknown,
)
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.worker.exit_codes import ExitCode

from . import leader

NAME = "pier"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,200}")
_PASSED_ON = ("PATH", "HOME", "LANG", "USER", "TMPDIR", "XDG_RUNTIME_DIR")  # nothing else of the server's environment
_SUBMIT_S = 20.0
_EXITS: dict[int | None, tuple[Observed, Reason | None]] = {
    ExitCode.ENDED: (Observed.COMPLETED, None),
    ExitCode.BAD_USAGE: (Observed.FAILED, Reason.BOOTSTRAP_FAILED),
    ExitCode.BAD_ATTEMPT: (Observed.FAILED, Reason.BOOTSTRAP_FAILED),
    ExitCode.NEVER_REGISTERED: (Observed.FAILED, Reason.WORKER_REGISTRATION_TIMEOUT),
    ExitCode.SERVER_GONE: (Observed.FAILED, Reason.SERVER_GONE),
}
_WORDS: dict[str, tuple[Observed, Reason | None]] = {
    leader.TOWED: (Observed.CANCELLED, None),
    leader.OVERSTAYED: (Observed.FAILED, Reason.TIME_LIMIT_EXCEEDED),
}
_UNSEEN = (Observed.FAILED, Reason.WORKER_LOST)  # any word or exit code that the tables do not have


class PierBackend:
    name = NAME
    runs_here = True  # RunsHere: workers reach the server's Unix socket

    def __init__(self, folder: Path, grace_s: float, proof: IsolationProof) -> None:
        self._folder = folder
        self._grace_s = grace_s
        self._proof = proof

    def check_profile(self, profile: ResourceProfile) -> None:
        for key in sorted(set(profile.backend_options) - {"nice"}):
            raise ConfigError(f"profile {profile.name!r}: backend 'pier' knows no key {key!r}. Remove it.", key)
        nice = profile.backend_options.get("nice", 0)
        if type(nice) is not int or not 0 <= nice <= 19:
            told = f"nice = {nice!r}, but it must be a whole number from 0 to 19."
            raise ConfigError(f"profile {profile.name!r}: {told}", "nice")
        if profile.nodes != 1:
            raise ConfigError(f"profile {profile.name!r}: nodes = {profile.nodes}, but a pier is one machine.", "nodes")

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        try:
            self.check_profile(request.profile)
        except ConfigError as error:
            return Rejected(Reason.INVALID_SPEC, str(error))
        try:
            return await asyncio.to_thread(self._submit, request)
        except (OSError, subprocess.TimeoutExpired) as error:  # it may have landed all the same
            return Unknown(request.token, str(error))

    async def observe(self, handles: Sequence[ExternalHandle]) -> Mapping[ExternalHandle, Observation]:
        return await asyncio.to_thread(lambda: {handle: self._observed(handle) for handle in handles})

    async def cancel(self, handle: ExternalHandle) -> None:
        folder = self._of(handle.value)
        try:
            if folder is not None and folder.exists() and not (folder / leader.ENDED).exists():
                (folder / leader.CANCEL).touch()  # the leader looks for it
        except OSError as error:
            raise CouldNotAsk(f"{folder} cannot be written: {error}") from error

    async def find_by_token(self, token: str) -> ExternalHandle | None:
        folder = self._of(token)
        try:
            if folder is None or not folder.exists():
                return None
            is_led = _is_held(folder)  # asked first: what lands in between is found by the next line
            if (folder / leader.STARTED).exists():
                return ExternalHandle(NAME, token)
        except OSError as error:
            raise CouldNotAsk(f"{folder} cannot be read: {error}") from error
        if is_led:
            raise CouldNotAsk("it is being submitted at this moment")
        return None

    async def diagnostics(self, handle: ExternalHandle) -> Diagnostics:
        folder = self._of(handle.value)
        log = None if folder is None else folder / "log"
        if log is None or not log.exists():
            return Diagnostics(backend_detail="there is no log of it")
        return Diagnostics(log.read_text(errors="replace")[-8000:], (log,))

    async def close(self) -> None:
        """Allocations live on."""

    # Optional ports: TerminalAllocationAcknowledger, TaskRunner, SessionIsolationProvider.

    async def acknowledge_terminal(self, handle: ExternalHandle) -> None:
        folder = self._of(handle.value)
        if folder is not None and (folder / leader.ENDED).exists():
            await asyncio.to_thread(shutil.rmtree, folder, True)

    def check_task(self, profile: ResourceProfile) -> None:
        """One more process below the worker: every profile can hold it."""

    async def isolates_session_credentials(
        self, profile: ResourceProfile, private_network: bool = False
    ) -> IsolationVerdict:
        return await self._proof.verdict(profile, private_network)

    # In a thread, which may wait.

    def _submit(self, request: AllocationRequest) -> SubmitResult:
        folder, handle = self._of(request.token), ExternalHandle(NAME, request.token)
        if folder is None:
            return Rejected(Reason.INVALID_SPEC, f"The token {request.token!r} cannot name a folder.")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            give_up_at = time.monotonic() + _SUBMIT_S
            while not _try_lock(lock, fcntl.LOCK_EX) and not (folder / leader.STARTED).exists():
                if time.monotonic() > give_up_at:
                    return Unknown(request.token, "somebody else has been submitting it for too long")
                time.sleep(0.02)
            if (folder / leader.STARTED).exists():
                return Existing(handle)
            launched = self._launch(request, folder, lock)
            if launched.returncode == 0 or (folder / leader.STARTED).exists():
                return Created(handle)
            return Rejected(Reason.BACKEND_UNAVAILABLE, "The pier's leader could not be started. See its log.")
        finally:
            os.close(lock)

    def _launch(self, request: AllocationRequest, folder: Path, lock: int) -> subprocess.CompletedProcess[bytes]:
        """Returns when the leader has put itself down as started. It inherits the lock, should we be killed."""
        nice = str(request.profile.backend_options.get("nice", 0))
        limits = (str(lock), str(self._grace_s), str(request.profile.walltime_s), nice)
        program = (sys.executable, "-I", *request.program, "--rank", "0")
        with open(os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
            return subprocess.run(
                [sys.executable, "-I", "-S", leader.__file__, str(folder), *limits, *program],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                pass_fds=(lock,),
                start_new_session=True,
                timeout=_SUBMIT_S,
                check=False,
            )

    def _observed(self, handle: ExternalHandle) -> Observation:
        folder = self._of(handle.value) if handle.backend == NAME else None
        try:
            if folder is None or not folder.exists():
                return Observation(Observed.GONE, backend_detail="there is no such folder")
            is_led = _is_held(folder)  # asked first: a leader writes the end before it lets go
            if (folder / leader.ENDED).exists():
                return _ended(json.loads((folder / leader.ENDED).read_text()))
            if is_led:
                started = (folder / leader.STARTED).exists()
                return Observation(Observed.RUNNING if started else Observed.PENDING, hosts=(os.uname().nodename,))
            return Observation(Observed.GONE, backend_detail="its leader was killed")
        except (OSError, ValueError, KeyError) as error:
            return Observation(Observed.UNKNOWN, backend_detail=str(error))

    def _of(self, token: str) -> Path | None:
        return self._folder / token if _TOKEN.fullmatch(token) else None


def _ended(end: Mapping[str, Any]) -> Observation:
    word, code = end["word"], end["exit_code"]
    state, reason = _EXITS.get(code, _UNSEEN) if word == leader.DEPARTED else _WORDS.get(word, _UNSEEN)
    return Observation(state, reason, backend_detail=f"{word}, exit code {code}", exit_code=code)


def _is_held(folder: Path) -> bool:
    try:
        lock = os.open(folder / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(lock, fcntl.LOCK_SH)
    finally:
        os.close(lock)


def _try_lock(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def create_backend(*, state_dir: Path, exchange_dir: Path, options: Mapping[str, Any]) -> PierBackend:
    """The entry point: a BackendFactory. Touches no file."""
    for key in sorted(set(options) - {"grace_s"}):
        raise ConfigError(f"[backends.pier]: unknown key {key!r}. Known keys: grace_s.", key)
    grace_s = options.get("grace_s", 10)
    if type(grace_s) not in (int, float) or not 0 <= grace_s <= 600:
        raise ConfigError(f"[backends.pier]: grace_s = {grace_s!r}, but it must be seconds from 0 to 600.", "grace_s")
    return PierBackend(state_dir / "pier", grace_s, IsolationProof(SandboxProbe(state_dir, exchange_dir)))
