"""Asks the probe whether allocations on this machine are isolated, once per exact configuration.

A proof holds for what it was made with; concurrent askers share one run; a failure is soon asked again, because its
remedy may have been carried out. It judges nothing itself: the verdict is the probe's.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Protocol

from openai4s_provisioner.orchestration.models import ResourceProfile
from openai4s_provisioner.orchestration.ports import IsolationVerdict

NEEDS_LINUX = "Sessions need Linux, whose namespaces keep them apart. Run the Jupyter server on a Linux machine."
_FAILURE_HOLDS_S = 5.0


class Probe(Protocol):
    """Both methods are called in a thread and may block."""

    def configuration(self, profile: ResourceProfile, private_network: bool = False) -> str:
        """Everything a proof depends on, as one text: the same text, the same verdict."""

    def prove(self, profile: ResourceProfile, private_network: bool = False) -> IsolationVerdict: ...


class IsolationProof:
    """Used from one event loop."""

    def __init__(self, probe: Probe, clock: Callable[[], float] = time.monotonic, platform: str = sys.platform) -> None:
        self._probe = probe
        self._clock = clock
        self._is_linux = platform.startswith("linux")
        self._proven: dict[str, IsolationVerdict] = {}
        self._failed: dict[str, tuple[float, IsolationVerdict]] = {}
        self._running: dict[str, asyncio.Task[IsolationVerdict]] = {}

    async def verdict(self, profile: ResourceProfile, private_network: bool = False) -> IsolationVerdict:
        if not self._is_linux:
            return IsolationVerdict(False, NEEDS_LINUX)
        configuration = await asyncio.to_thread(self._probe.configuration, profile, private_network)
        known = self._remembered(configuration)
        if known is not None:
            return known
        run = self._running.get(configuration)
        if run is None:
            run = asyncio.create_task(self._prove(configuration, profile, private_network))
            self._running[configuration] = run
        return await asyncio.shield(run)  # one caller that gives up does not take the run from the others

    def _remembered(self, configuration: str) -> IsolationVerdict | None:
        if configuration in self._proven:
            return self._proven[configuration]
        failed_at, verdict = self._failed.get(configuration, (0.0, None))
        return verdict if self._clock() - failed_at < _FAILURE_HOLDS_S else None

    async def _prove(self, configuration: str, profile: ResourceProfile, private_network: bool) -> IsolationVerdict:
        try:
            verdict = await asyncio.to_thread(self._probe.prove, profile, private_network)
            if verdict.verified:
                self._proven[configuration] = verdict
            else:
                self._failed[configuration] = (self._clock(), verdict)
            return verdict
        finally:
            del self._running[configuration]
