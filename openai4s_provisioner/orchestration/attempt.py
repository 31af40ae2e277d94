"""One attempt's files: what its workers need to start, written before the submission and taken away after the end.

The spec of the attempt is derived from the durable one and never stored. Secrets lie in 0600 files below a 0700
folder, named by path. Isolation is verified again before anything is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .admission import SandboxFor, verify_isolation
from .batch_files import keep_output, read_exit
from .bootstrap import CREDENTIAL_LIFE_S, Claims, CredentialIssuer, fresh_nonce
from .errors import CouldNotAsk, Refused
from .launches import launch_json
from .models import (
    Allocation,
    CommandExit,
    KernelLaunch,
    Kind,
    ResourceProfile,
    Workload,
    WorkloadSpec,
    WorkspacePolicy,
)
from .ports import AllocationBackend, AllocationRequest, RankLauncher
from .private_folder import prepare_folder, remove_folder
from .reasons import Reason
from .steady_clock import steady_time
from .way_record import failed_ways
from .ways_in import ADDRESS_RECORD, WaysIn, address_record
from .workspace_proof import nonce_name, place_nonce, remove_proofs

KEPT_LOGS = 20  # failed attempts whose logs are kept
KEPT_LOG_BYTES = 256 * 1024
_TAIL_BYTES = 2048


class AttemptPreparer:
    """Prepares and clears attempts. `launches` is the session service's book, in memory only."""

    def __init__(
        self,
        *,
        state_dir: Path,
        exchange_dir: Path,
        issuer: CredentialIssuer,
        launches: Mapping[str, KernelLaunch],
        sandbox_for: SandboxFor,
        bundle_path: Callable[[], Path],
        ways_in: Callable[[], WaysIn],
        server_grace_s: float,
        prepare_homes: Callable[[WorkloadSpec, ResourceProfile], None] = lambda spec, profile: None,
        sweep_scratch: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = steady_time,
    ) -> None:
        self._logs = state_dir / "logs"
        self._attempts = exchange_dir / "attempts"
        self._issuer = issuer
        self._launches = launches
        self._sandbox_for = sandbox_for
        self._prepare_homes = prepare_homes
        self._sweep_scratch = sweep_scratch
        self._bundle_path = bundle_path
        self._ways_in = ways_in
        self._server_grace_s = server_grace_s
        self._clock = clock
        self._writing: set[str] = set()  # allocations whose files are being written

    def attempt_dir(self, allocation_id: str) -> Path:
        return self._attempts / allocation_id

    async def prepare(
        self, workload: Workload, allocation: Allocation, profile: ResourceProfile, backend: AllocationBackend
    ) -> AllocationRequest:
        """Verify isolation, then write the attempt's files. Repeating it writes them anew. Raises Refused, OSError."""
        launch = self._launches.get(workload.workload_id)
        if launch is None:
            raise Refused.because(Reason.SERVER_GONE)
        await verify_isolation(backend, profile, launch.transport)
        route = {} if workload.kind is Kind.BATCH else self._route(profile, backend)
        if route and allocation.nodes > 1 and isinstance(backend, RankLauncher):
            route["step_prefix"] = list(backend.step_prefix(profile))
        key = allocation.allocation_id
        self._writing.add(key)
        writing = asyncio.ensure_future(asyncio.to_thread(self._write, workload, allocation, profile, launch, route))
        writing.add_done_callback(lambda _: self._writing.discard(key))
        return await asyncio.shield(writing)  # a caller may stop waiting for it; the thread cannot be stopped

    async def clear(self, workload: Workload, allocation: Allocation) -> None:
        """Take away everything that the attempt left in the file system; a failed one's logs are kept, bounded.

        Raises CouldNotAsk while its files are still being written, by a preparation that took too long.
        """
        if allocation.allocation_id in self._writing:
            raise CouldNotAsk("its files are still being written")
        await asyncio.to_thread(self._clear, workload, allocation)

    async def log_tail(self, allocation_id: str, rank: int = 0) -> str:
        """The last lines that a worker logged; "" when there are none."""
        return await asyncio.to_thread(_tail, self.attempt_dir(allocation_id) / f"worker-{rank}.log", _TAIL_BYTES)

    async def failed_ways(self, allocation_id: str, rank: int) -> str:
        """Where a worker that has not come dialled in vain, and why; "" when it has not said so."""
        return await asyncio.to_thread(failed_ways, self.attempt_dir(allocation_id), rank)

    def _route(self, profile: ResourceProfile, backend: AllocationBackend) -> dict[str, Any]:
        """Where the workers dial, and whom they expect there. Raises Refused."""
        ways_in = self._ways_in()
        addresses = ways_in.for_workers(profile, backend)
        return {"addresses": list(addresses), "certificate_sha256": ways_in.certificate_sha256}

    async def command_exit(self, allocation_id: str) -> CommandExit | None:
        """How a BATCH's command ended; None while its worker has not written that down."""
        return await asyncio.to_thread(read_exit, self.attempt_dir(allocation_id))

    def _write(
        self,
        workload: Workload,
        allocation: Allocation,
        profile: ResourceProfile,
        launch: KernelLaunch,
        route: dict[str, Any],
    ) -> AllocationRequest:
        folder = self.attempt_dir(allocation.allocation_id)
        for parent in (self._attempts.parent, self._attempts):
            prepare_folder(parent)
        self._place_nonce(workload, allocation, profile)
        self._prepare_homes(workload.spec, profile)
        bundle = self._bundle_path()
        remove_folder(folder)
        folder.mkdir(mode=0o700)
        sandbox = dict(self._sandbox_for(workload.spec, profile))
        for rank in range(allocation.nodes):
            content = self._rank_file(workload, allocation, rank, launch, sandbox) | route
            content |= {"spool_mb": profile.spool_mb, "gpus": profile.gpus}
            if workload.kind is Kind.BATCH:
                content = self._batch_file(content)
            _write_private(folder / f"rank-{rank}.json", json.dumps(content))
        if route:  # a BATCH dials nobody
            _write_private(folder / ADDRESS_RECORD, address_record(route["addresses"], route["certificate_sha256"]))
        return AllocationRequest(
            token=allocation.token,
            allocation_id=allocation.allocation_id,
            workload_id=workload.workload_id,
            profile=profile,
            program=(str(bundle), "batch" if workload.kind is Kind.BATCH else "worker", str(folder)),
            attempt_dir=folder,
        )

    def _place_nonce(self, workload: Workload, allocation: Allocation, profile: ResourceProfile) -> None:
        workspace = Path(workload.spec.workspace)
        try:
            if profile.workspace is WorkspacePolicy.PRIVATE:
                workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
            place_nonce(workspace, allocation.allocation_id, self._issuer.workspace_nonce(allocation.allocation_id))
        except OSError as error:
            why = f"{workspace} cannot be written here ({error.strerror})."
            raise Refused.because(Reason.WORKSPACE_UNREACHABLE, why) from error

    def _rank_file(
        self,
        workload: Workload,
        allocation: Allocation,
        rank: int,
        launch: KernelLaunch,
        sandbox: dict[str, Any],
    ) -> dict[str, Any]:
        claims = Claims(
            workload_id=workload.workload_id,
            allocation_id=allocation.allocation_id,
            epoch=allocation.epoch,
            rank=rank,
            expires_at=self._clock() + CREDENTIAL_LIFE_S,
            nonce=fresh_nonce(),
        )
        return {
            "version": 1,
            "workload_id": workload.workload_id,
            "allocation_id": allocation.allocation_id,
            "epoch": allocation.epoch,
            "rank": rank,
            "ranks": allocation.nodes,
            "credential": self._issuer.issue(claims),
            "workspace": {"path": workload.spec.workspace, "nonce_name": nonce_name(allocation.allocation_id)},
            "sandbox": sandbox,
            "launch": launch_json(launch) if rank == 0 else None,
            "server_grace_s": self._server_grace_s,
        }

    def _batch_file(self, content: dict[str, Any]) -> dict[str, Any]:
        """Of a rank's file what needs no server; the nonce itself instead, since nobody is there to judge an answer."""
        kept = ("version", "workload_id", "allocation_id", "epoch", "rank", "sandbox", "launch", "gpus")
        nonce = self._issuer.workspace_nonce(content["allocation_id"])
        return {**{name: content[name] for name in kept}, "workspace": {**content["workspace"], "nonce": nonce}}

    def _clear(self, workload: Workload, allocation: Allocation) -> None:
        remove_proofs(Path(workload.spec.workspace), allocation.allocation_id, allocation.nodes)
        folder = self.attempt_dir(allocation.allocation_id)
        if not folder.exists():
            return
        if workload.kind is Kind.BATCH:
            keep_output(folder, self._logs.parent, workload.workload_id)
        if workload.phase.has_failed:
            self._keep_logs(folder, allocation)
        remove_folder(folder)
        self._sweep_scratch()  # a killed worker could not; where it ran elsewhere, the next worker there does

    def _keep_logs(self, folder: Path, allocation: Allocation) -> None:
        prepare_folder(self._logs)
        for rank in range(allocation.nodes):
            text = _tail(folder / f"worker-{rank}.log", KEPT_LOG_BYTES)
            kept = self._logs / f"{allocation.allocation_id}.worker-{rank}.log"
            if text and not kept.exists():
                _write_private(kept, text)
        _prune(self._logs, KEPT_LOGS)


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _tail(path: Path, size: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - size))
            return file.read(size).decode("utf-8", errors="replace").strip()
    except OSError:
        return ""


def _prune(folder: Path, attempts: int) -> None:
    """Keep the logs of the newest `attempts`, counted by attempt and not by file."""
    newest: dict[str, float] = {}
    for path in folder.glob("*.worker-*.log"):
        with contextlib.suppress(FileNotFoundError):
            name = path.name.partition(".")[0]
            newest[name] = max(newest.get(name, 0.0), path.stat().st_mtime)
    for name in sorted(newest, key=newest.__getitem__, reverse=True)[attempts:]:
        for path in folder.glob(f"{name}.worker-*.log"):
            path.unlink(missing_ok=True)
