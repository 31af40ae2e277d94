"""The Slurm backend: each allocation is one job of this account.

It implements the core's port over commands that run in its own few threads; no method blocks the caller's loop. What it
must know of a job lies in the queue, in accounting and beside the attempt, so a restarted server finds everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
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
    Observed,
    Rejected,
    SubmitResult,
)
from openai4s_provisioner.orchestration.reasons import Reason

from . import extension, script, wording
from .broker import Broker, BrokerError, TimedOut, Unreachable
from .isolation import IsolationProofs
from .judge import Judge
from .lookup import NAME, Lookup, on, read_handle
from .masks import masks
from .parse import JobName, QueueRow
from .places import Places
from .position import Positions
from .profiles import SlurmOptions, read_options, read_profile
from .proof import JobProver
from .queue import SharedQueue
from .steps import task_step
from .submit import Submitter

_log = logging.getLogger(__name__)
_THREADS = 6  # a hung submission must not hold up observation
_LOG_TAIL_BYTES = 8000

T = TypeVar("T")


class SlurmBackend:
    name = NAME

    def __init__(self, state_dir: Path, exchange_dir: Path, options: SlurmOptions) -> None:
        broker = Broker(options.deadline_s, options.slurm_conf, options.commands)
        self._broker = broker
        self._places = Places(state_dir / NAME)
        self._lookup = Lookup(broker, self._places, options.cluster)
        self._submitter = Submitter(broker, self._lookup, self._places, options.cluster)
        self._judge = Judge(self._lookup, self._places, self._end, Positions(broker).of)
        self._options = options
        # It waits for its turn, and then for the command.
        self.answer_bounds = {"min_interval_s": options.min_interval_s, "deadline_s": options.deadline_s}
        self._silent: set[str] = set()  # clusters
        prover = JobProver(self, self._places.forget, state_dir, exchange_dir, options)
        self._proofs = IsolationProofs(prover, state_dir / NAME / "isolation", options.isolation_max_age_s)
        self._shared = SharedQueue(self._ask_queue, options.min_interval_s)
        # Starts no thread until the first call.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="slurm-backend")

    def check_profile(self, profile: ResourceProfile) -> None:
        read_profile(profile)

    def check_task(self, profile: ResourceProfile) -> None:
        """A step runs below the worker, in the allocation that is held: every profile can hold it."""

    def step_prefix(self, profile: ResourceProfile) -> Sequence[str]:
        return task_step(profile.nodes)

    def can_extend(self, profile: ResourceProfile) -> bool:
        return extension.can_extend(profile)

    async def extend(self, handle: ExternalHandle, profile: ResourceProfile, seconds: int) -> float:
        known = read_handle(handle)
        if known is None:
            raise Refused(Reason.INVALID_SPEC, "No job has such a name.")
        return await self._in_thread(extension.extend, self._broker, self._lookup, *known, profile, seconds)

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        try:
            self.check_profile(request.profile)
        except ConfigError as error:
            return Rejected(Reason.INVALID_SPEC, str(error))
        return await self._in_thread(self._submitter.submit, request)

    async def observe(self, handles: Sequence[ExternalHandle]) -> Mapping[ExternalHandle, Observation]:
        wanted: dict[str, dict[ExternalHandle, tuple[JobName, str]]] = {}
        answers: dict[ExternalHandle, Observation] = {}
        for handle in handles:
            known = read_handle(handle)
            if known is None:
                answers[handle] = Observation(Observed.GONE, backend_detail="no job has such a name")
            else:
                wanted.setdefault(known[0].cluster, {})[handle] = known
        for part in await asyncio.gather(*(self._observe(cluster, jobs) for cluster, jobs in wanted.items())):
            answers.update(part)
        return answers

    async def cancel(self, handle: ExternalHandle) -> None:
        known = read_handle(handle)
        if known is not None:
            await self._in_thread(self._end, *known)

    async def find_by_token(self, token: str) -> ExternalHandle | None:
        return await self._in_thread(self._find, token)

    async def find_all_by_token(self, token: str) -> Sequence[ExternalHandle]:
        return await self._in_thread(self._lookup.alive, token)

    async def diagnostics(self, handle: ExternalHandle) -> Diagnostics:
        return await self._in_thread(self._diagnostics, handle)

    async def isolates_session_credentials(
        self, profile: ResourceProfile, private_network: bool = False
    ) -> IsolationVerdict:
        return await self._proofs.verdict(profile, private_network)

    def masks(self, profile: ResourceProfile) -> Sequence[str]:
        return masks(self._options)

    async def close(self) -> None:
        """Jobs live on; only our threads end."""
        await self._proofs.close()
        await self._shared.close()
        self._threads.shutdown(wait=False)

    async def _in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    async def _ask_queue(self, cluster: str) -> Sequence[QueueRow]:
        return await self._in_thread(self._lookup.queue, cluster)

    async def _observe(
        self, cluster: str, jobs: Mapping[ExternalHandle, tuple[JobName, str]]
    ) -> Mapping[ExternalHandle, Observation]:
        try:
            rows = await self._shared.rows(cluster)
            self._said_silent(cluster, None)
        except BrokerError as error:
            self._said_silent(cluster, error)
            return {handle: Observation(Observed.UNKNOWN, backend_detail=str(error)) for handle in jobs}
        return await self._in_thread(self._judge.judge, jobs, rows, cluster)

    def _said_silent(self, cluster: str, error: BrokerError | None) -> None:
        """One line when a cluster falls silent, one when it answers again; sessions go on meanwhile."""
        was_silent = cluster in self._silent
        if error is not None and not was_silent:
            self._silent.add(cluster)
            _log.warning("the cluster cannot be asked after its jobs; they go on meanwhile: %s", error)
        elif error is None and was_silent:
            self._silent.discard(cluster)
            _log.warning("the cluster can be asked after its jobs again")

    def _find(self, token: str) -> ExternalHandle | None:
        self._places.check_no_submission(token)
        return self._lookup.find(token)

    def _end(self, name: JobName, token: str) -> None:
        """By number and name: a number is used again one day."""
        argv = ["scancel", *on(name.cluster), f"--user={os.getuid()}", f"--name={script.job_name(token)}"]
        try:
            self._broker.run([*argv, str(name.number)])
        except BrokerError as error:
            if wording.is_over(error.stderr) and not isinstance(error, Unreachable | TimedOut):
                return
            raise CouldNotAsk(f"the job could not be asked to end: {error}") from error

    def _diagnostics(self, handle: ExternalHandle) -> Diagnostics:
        known = read_handle(handle)
        attempt = self._places.attempt_of(known[1]) if known is not None else None
        if known is None or attempt is None:
            return Diagnostics(backend_detail="nothing of it is left here")
        paths = (attempt / "worker-0.log", attempt / script.LOG)
        texts = [_tail(path, _LOG_TAIL_BYTES) for path in paths]
        return Diagnostics("\n".join(text for text in texts if text), paths, f"job {known[0].number}")


def _tail(path: Path, size: int) -> str:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - size, 0))
        text = file.read(size).decode("utf-8", errors="replace")
        return text.partition("\n")[2] if end > size else text
    return ""


def create_backend(*, state_dir: Path, exchange_dir: Path, options: Mapping[str, Any]) -> SlurmBackend:
    """The entry point. Touches no file: the first submission makes its folder."""
    return SlurmBackend(state_dir, exchange_dir, read_options(options))
