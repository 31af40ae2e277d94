"""What a short-lived process needs to submit commands and to look after them: the control plane without a gateway.

Made for one call of the command line and gone with it. It adopts commands only, never sessions: those belong to
servers. What it leaves unfinished is adopted by the next process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from .app_values import AppSettings
from .orchestration.admission import AdmissionRequest
from .orchestration.batch import BatchService
from .orchestration.batch_files import RECORD_NAME, kept_output
from .orchestration.models import Kind
from .orchestration.ways_in import WaysIn
from .parts import AdmissionParts, Driving, credential_issuer


class _NoWorkers:
    """There is no gateway here, so no worker is known."""

    def send(self, allocation_id: str, rank: int, message: Mapping[str, Any]) -> bool:
        return False

    def hold(self, allocation_id: str, is_paused: bool) -> None:
        return

    def forget(self, allocation_id: str) -> None:
        return


class CommandApp:
    """`batches` is what one asks; `output_folders` is where a command's output lies."""

    def __init__(self, admitting: AdmissionParts) -> None:
        self.settings = admitting.settings
        self.config = admitting.config
        self.store = admitting.store
        issuer = credential_issuer(self.settings)
        self._driving = driving = Driving(admitting, issuer, _NoWorkers(), lambda: WaysIn(""), adopts=Kind.BATCH)
        self.batches = BatchService(
            config=self.config,
            store=self.store,
            admission=admitting.admission,
            daemon=driving.daemon,
            launches=driving.launches,
            driver=driving.reconciler,
            has_record=lambda allocation_id: (driving.preparer.attempt_dir(allocation_id) / RECORD_NAME).exists(),
        )

    def output_folders(self, workload_id: str, allocation_id: str) -> tuple[str, str]:
        """Where the output is while the command runs, and where it stays afterwards."""
        live = self._driving.preparer.attempt_dir(allocation_id)
        return str(live), str(kept_output(self.settings.state_dir, workload_id))

    def start(self) -> None:
        self._driving.reconciler.start()

    async def stop(self) -> None:
        await self._driving.reconciler.stop()
        await self._driving.daemon.retire()


@contextlib.asynccontextmanager
async def command_app(settings: AppSettings, request: AdmissionRequest | None = None) -> AsyncIterator[CommandApp]:
    """For one call of the command line. Raises ConfigError, StateError.

    `request`: what it is made for; when that is Refused, nothing was written.
    """
    admitting = AdmissionParts(settings)
    try:
        if request is not None:
            await admitting.admission.admit(request)
        app = await asyncio.to_thread(CommandApp, admitting)
        app.start()
        try:
            yield app
        finally:
            await app.stop()
    finally:
        await admitting.stop()
