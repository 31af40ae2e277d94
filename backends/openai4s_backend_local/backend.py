"""The local backend: allocations are process trees on this machine.

Its handle is the submission token, which names the receipt. It implements the core's port and keeps no state of its
own: two backends over one folder, in two processes, agree, and a restarted one finds everything by reading.
All waiting is done in its own few threads; no method blocks the caller's loop.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from openai4s_provisioner.orchestration.errors import ConfigError, CouldNotAsk, Refused
from openai4s_provisioner.orchestration.models import ExternalHandle, ResourceProfile
from openai4s_provisioner.orchestration.ports import (
    AllocationRequest,
    Diagnostics,
    IsolationVerdict,
    Observation,
    Rejected,
    SubmitResult,
)
from openai4s_provisioner.orchestration.reasons import Reason

from . import outcome, shim
from .isolation import IsolationProof, Probe
from .launch import Launcher, Limits, tail
from .probe import SandboxProbe
from .process_tree import Life, Standing, end_survivors, standings
from .receipts import Receipt, Receipts, Started

NAME = "local"
_THREADS = 4  # one slow launch must not hold up observation
_SURVIVORS_S = 5.0
_LONGEST_KILL_AFTER_S = 600
_LOG_TAIL_BYTES = 8000
_OVER = (Life.NOTHING, Life.EARLIER_BOOT)

T = TypeVar("T")


class LocalBackend:
    name = NAME
    runs_here = True

    def __init__(self, receipts_folder: Path, limits: Limits, probe: Probe) -> None:
        self._receipts = Receipts(receipts_folder)
        self._launcher = Launcher(NAME, self._receipts, limits)
        self._isolation = IsolationProof(probe)
        # Starts no thread until the first call.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="local-backend")

    def check_profile(self, profile: ResourceProfile) -> None:
        for key in sorted(profile.backend_options):
            raise ConfigError(f"profile {profile.name!r}: backend 'local' knows no key {key!r}. Remove it.", key)
        if profile.nodes != 1:
            told = f"nodes = {profile.nodes}, but backend 'local' is one machine. Set nodes = 1."
            raise ConfigError(f"profile {profile.name!r}: {told}", "nodes")

    def check_task(self, profile: ResourceProfile) -> None:
        """A step is one more process below the worker: every profile can hold it."""

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        if not sys.platform.startswith("linux"):
            return Rejected(Reason.BACKEND_UNAVAILABLE, "Backend 'local' needs Linux. Choose another backend.")
        try:
            self.check_profile(request.profile)
        except ConfigError as error:
            return Rejected(Reason.INVALID_SPEC, str(error))
        return await self._in_thread(self._launcher.launch, request)

    async def observe(self, handles: Sequence[ExternalHandle]) -> Mapping[ExternalHandle, Observation]:
        return await self._in_thread(self._observe, handles)

    async def cancel(self, handle: ExternalHandle) -> None:
        await self._in_thread(self._cancel, handle.value)

    async def find_by_token(self, token: str) -> ExternalHandle | None:
        return await self._in_thread(self._find, token)

    def can_extend(self, profile: ResourceProfile) -> bool:
        return 0 < profile.walltime_s < profile.max_walltime_s

    async def extend(self, handle: ExternalHandle, profile: ResourceProfile, seconds: int) -> float:
        return await self._in_thread(self._extend, handle.value, profile, seconds)

    async def diagnostics(self, handle: ExternalHandle) -> Diagnostics:
        return await self._in_thread(self._diagnostics, handle)

    async def acknowledge_terminal(self, handle: ExternalHandle) -> None:
        """Forget the receipt of an allocation that is over. Does nothing to one that is not."""
        await self._in_thread(self._acknowledge, handle.value)

    async def isolates_session_credentials(
        self, profile: ResourceProfile, private_network: bool = False
    ) -> IsolationVerdict:
        return await self._isolation.verdict(profile, private_network)

    async def close(self) -> None:
        """Allocations live on; only our threads end."""
        self._threads.shutdown(wait=False)

    async def _in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    def _observe(self, handles: Sequence[ExternalHandle]) -> dict[ExternalHandle, Observation]:
        answers: dict[ExternalHandle, Observation] = {}
        started: dict[ExternalHandle, Receipt] = {}
        for handle in handles:
            try:
                receipt, launching = self._receipts.look(handle.value) if handle.backend == NAME else (None, False)
                if receipt is not None and receipt.started is not None:
                    started[handle] = receipt
                elif receipt is not None and launching:
                    answers[handle] = outcome.launching()
                else:
                    answers[handle] = outcome.gone("there is no receipt of it")
            except (CouldNotAsk, OSError) as error:
                answers[handle] = outcome.unknown(str(error))
        return {**answers, **self._observe_started(started)}

    def _observe_started(self, receipts: Mapping[ExternalHandle, Receipt]) -> dict[ExternalHandle, Observation]:
        try:
            found = standings([r.started for r in receipts.values() if r.started is not None and r.ended is None])
        except OSError as error:
            return {handle: outcome.unknown(str(error)) for handle in receipts}
        return {handle: self._judge(receipt, found) for handle, receipt in receipts.items()}

    def _judge(self, receipt: Receipt, found: Mapping[Started, Standing]) -> Observation:
        if receipt.ended is not None or receipt.started is None:
            return outcome.observation(receipt, Standing(Life.NOTHING))
        standing = found[receipt.started]
        if standing.life is Life.LED:
            return outcome.observation(receipt, standing)
        try:  # the shim may have written the end between our two looks
            return outcome.observation(self._receipts.read(receipt.token) or receipt, standing)
        except CouldNotAsk as error:
            return outcome.unknown(str(error))

    def _find(self, token: str) -> ExternalHandle | None:
        """None is a promise: what may have been claimed under this token is removed, so no late launch can publish."""
        try:
            if self._receipts.read(token) is None:
                return None
            with self._receipts.locked():
                receipt, launching = self._receipts.look(token)
                if receipt is None:
                    return None
                if receipt.started is not None:
                    return ExternalHandle(NAME, token)
                if launching:
                    raise CouldNotAsk("it is being launched at this moment")
                self._receipts.remove(token)
                return None
        except OSError as error:
            raise CouldNotAsk(f"the receipt of the allocation cannot be read: {error}") from error

    def _cancel(self, token: str) -> None:
        try:
            receipt = self._receipts.read(token)
            if receipt is None or receipt.ended is not None:
                return
            self._receipts.ask_cancel(token)
            receipt = self._receipts.read(token)  # the shim looks for the request after it published: one of us sees it
            if receipt is not None and receipt.started is not None and receipt.ended is None:
                self._end(receipt.started)
        except FileNotFoundError:
            return  # acknowledged meanwhile
        except OSError as error:
            raise CouldNotAsk(f"the allocation could not be asked to end: {error}") from error

    def _end(self, started: Started) -> None:
        standing = standings([started])[started]
        if standing.life is Life.ANOTHER_HOST:
            raise CouldNotAsk(f"the allocation runs on host {started.host}; it can only be ended from there")
        if standing.leader is not None and shim.send_signal(standing.leader, signal.SIGTERM):
            shim.send_signal(standing.leader, signal.SIGCONT)  # a stopped shim would never see it
            return
        if standing.life is not Life.EARLIER_BOOT:
            end_survivors(started, _SURVIVORS_S)

    def _extend(self, token: str, profile: ResourceProfile, seconds: int) -> float:
        """The leading process reads a new limit when the old one has run out: written is in force."""
        try:
            with self._receipts.locked():
                receipt = self._receipts.read(token)
                if receipt is None or receipt.started is None or receipt.ended is not None:
                    raise Refused(Reason.INVALID_SPEC, "This session has ended already.")
                if receipt.ends_at is None:
                    raise Refused(Reason.INVALID_SPEC, "This session has no time limit that could be extended.")
                began = receipt.started.started_at
                limit_s = receipt.ends_at - began + seconds
                if limit_s > profile.max_walltime_s:
                    left = max(0, int(began + profile.max_walltime_s - receipt.ends_at))
                    raise Refused(
                        Reason.POLICY_REJECTED,
                        f"Sessions of profile {profile.name!r} run for at most {profile.max_walltime_s} s in all, so "
                        f"this one can be extended by {left} s at most. Ask for that, or save your work.",
                    )
                self._receipts.set_limit(token, limit_s)
                return began + limit_s
        except OSError as error:
            raise CouldNotAsk(f"the new time limit cannot be written: {error}") from error

    def _diagnostics(self, handle: ExternalHandle) -> Diagnostics:
        try:
            receipt = self._receipts.read(handle.value)
        except CouldNotAsk as error:
            return Diagnostics(backend_detail=str(error))
        if receipt is None:
            return Diagnostics(backend_detail="there is no receipt of it")
        paths = [self._receipts.log_of(handle.value)]
        if receipt.claim is not None:
            paths.insert(0, Path(receipt.claim.attempt_dir) / "worker-0.log")
        texts = [_tail_or_error(path) for path in paths]
        observed = self._observe([handle])[handle]
        return Diagnostics("\n".join(text for text in texts if text), tuple(paths), observed.backend_detail)

    def _acknowledge(self, token: str) -> None:
        try:
            if self._receipts.read(token) is None:
                return
            with self._receipts.locked():
                receipt, launching = self._receipts.look(token)
                if receipt is not None and not launching and _is_over(receipt):
                    self._receipts.remove(token)
        except OSError as error:
            raise CouldNotAsk(f"the receipt of the allocation cannot be removed: {error}") from error


def _is_over(receipt: Receipt) -> bool:
    if receipt.started is None or receipt.ended is not None:
        return True
    return standings([receipt.started])[receipt.started].life in _OVER


def _tail_or_error(path: Path) -> str:
    try:
        return tail(path, _LOG_TAIL_BYTES)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"


def create_backend(*, state_dir: Path, exchange_dir: Path, options: Mapping[str, Any]) -> LocalBackend:
    """The entry point. Touches no file: the first submission makes the folder of receipts."""
    return LocalBackend(state_dir / "receipts", _limits(options), SandboxProbe(state_dir, exchange_dir))


def _limits(options: Mapping[str, Any]) -> Limits:
    unknown = sorted(set(options) - {"max_concurrent", "kill_after_s"})
    if unknown:
        raise ConfigError(
            f"[backends.local]: unknown key {unknown[0]!r}. Known keys: kill_after_s, max_concurrent.", unknown[0]
        )
    limits = Limits(**options)
    if type(limits.max_concurrent) is not int or limits.max_concurrent < 1:
        raise ConfigError(
            f"[backends.local]: max_concurrent = {limits.max_concurrent!r}, but it must be a whole number from 1.",
            "max_concurrent",
        )
    if type(limits.kill_after_s) not in (int, float) or not 0 <= limits.kill_after_s <= _LONGEST_KILL_AFTER_S:
        raise ConfigError(
            f"[backends.local]: kill_after_s = {limits.kill_after_s!r}, but it must be a number of seconds "
            f"from 0 to {_LONGEST_KILL_AFTER_S}.",
            "kill_after_s",
        )
    return limits
