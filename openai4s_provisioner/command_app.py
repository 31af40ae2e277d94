"""What a short-lived process needs to submit commands and to look after them: the control plane without a gateway.

Made for one call of the command line and gone with it. It adopts commands only, never sessions: those belong to
servers. What it leaves unfinished is adopted by the next process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from .app_values import AppSettings
from .orchestration.admission import AdmissionRequest
from .orchestration.attempt import AttemptPreparer
from .orchestration.batch import BatchService
from .orchestration.batch_files import RECORD_NAME, kept_output
from .orchestration.bootstrap import CredentialIssuer, load_secret
from .orchestration.bundle import write_worker_zipapp
from .orchestration.changes import ChangeBoard
from .orchestration.daemons import Daemon
from .orchestration.executor import Executor
from .orchestration.launches import LaunchBook
from .orchestration.models import Kind
from .orchestration.outbox import Outbox
from .orchestration.private_folder import prepare_folder
from .orchestration.reconciler import Reconciler
from .orchestration.ways_in import WaysIn
from .parts import AdmissionParts
from .transport.private_folder import remove_leftovers
from .worker.scratch import scratch_parent


class _NoWorkers:
    """There is no gateway here, so no worker is known."""

    def send(self, allocation_id: str, rank: int, message: Mapping[str, Any]) -> bool:
        return False

    def forget(self, allocation_id: str) -> None:
        return


class CommandApp:
    """`batches` is what one asks; `output_folders` is where a command's output lies."""

    def __init__(self, admitting: AdmissionParts) -> None:
        settings, config, store = admitting.settings, admitting.config, admitting.store
        self.settings = settings
        self.config = config
        self.store = store
        self._admitting = admitting
        launches, self._daemon = LaunchBook(), Daemon(store)
        self._preparer = AttemptPreparer(
            state_dir=settings.state_dir,
            exchange_dir=settings.exchange_dir,
            issuer=CredentialIssuer(load_secret(settings.state_dir)),
            launches=launches,
            sandbox_for=admitting.sandbox,
            prepare_homes=admitting.sandbox.prepare,
            sweep_scratch=lambda: remove_leftovers(scratch_parent()),
            bundle_path=lambda: write_worker_zipapp(settings.exchange_dir),
            ways_in=lambda: WaysIn(""),
            server_grace_s=config.limits.server_grace_s,
        )
        executor = Executor(
            store=store,
            daemon=self._daemon,
            config=config,
            policy=config.policy,
            backends=admitting.backends,
            preparer=self._preparer,
            outbox=Outbox(_NoWorkers()),
            launches=launches,
        )
        self._reconciler = Reconciler(
            store=store,
            daemon=self._daemon,
            config=config,
            executor=executor,
            changes=ChangeBoard(),
            policy=config.policy,
            adopts=Kind.BATCH,
        )
        self.batches = BatchService(
            config=config,
            store=store,
            admission=admitting.admission,
            daemon=self._daemon,
            launches=launches,
            driver=self._reconciler,
            has_record=lambda allocation_id: (self._preparer.attempt_dir(allocation_id) / RECORD_NAME).exists(),
        )

    def output_folders(self, workload_id: str, allocation_id: str) -> tuple[str, str]:
        """Where the output is while the command runs, and where it stays afterwards."""
        live = self._preparer.attempt_dir(allocation_id)
        return str(live), str(kept_output(self.settings.state_dir, workload_id))

    def start(self) -> None:
        self._reconciler.start()

    async def stop(self) -> None:
        await self._reconciler.stop()
        await self._daemon.retire()


@contextlib.asynccontextmanager
async def command_app(settings: AppSettings, request: AdmissionRequest | None = None) -> AsyncIterator[CommandApp]:
    """For one call of the command line. Raises ConfigError, StateError.

    `request`: what it is made for; when that is Refused, nothing was written.
    """
    admitting = AdmissionParts(settings)
    try:
        if request is not None:
            await admitting.admission.admit(request)
        app = await asyncio.to_thread(_made, admitting)
        app.start()
        try:
            yield app
        finally:
            await app.stop()
    finally:
        await admitting.stop()


def _made(admitting: AdmissionParts) -> CommandApp:
    prepare_folder(Path(admitting.settings.state_dir))
    return CommandApp(admitting)
