"""Whether sessions are kept apart on the machines that a profile leads to: proven there, by a job of its own.

A proof holds for exactly what it was made with and for a bounded time; it is kept in the state folder, so a restarted
server need not prove again; a probe that says no takes it back. All who ask share one job, in whatever process; one
that must queue is waited for a while, then the person is told so. A failure is soon asked again, because its remedy may
have been carried out. The probe inside each allocation still decides.
"""

from __future__ import annotations

import asyncio
import enum
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from openai4s_provisioner.orchestration.errors import StateError
from openai4s_provisioner.orchestration.models import ResourceProfile
from openai4s_provisioner.orchestration.ports import IsolationVerdict
from openai4s_provisioner.orchestration.private_folder import prepare_folder, read_private, replace_private
from openai4s_provisioner.orchestration.reasons import Reason

_log = logging.getLogger(__name__)
_FAILURE_HOLDS_S = 10.0
_PATIENCE_S = 100.0  # less than the control plane has
_LARGEST_BYTES = 1 << 20
_KEPT = 64
_RENEWAL_PAUSE_S = 3600.0
_PROVEN, _RENEWED = "proofs", "renewals"
Waiting = Callable[[str], None]


class Ending(enum.Enum):
    VERDICT = "the probe has answered, yes or no"
    NO_VERDICT = "it ended without an answer"
    OPEN = "it is not known whether it has begun"
    ELSEWHERE = "another process has seen its end, and written down what came of it"


@dataclass(frozen=True)
class ProofResult:
    ending: Ending
    verdict: IsolationVerdict
    proven_at: float = 0.0  # seconds since the epoch
    refused: Reason | None = None  # the place did not take the job; None: it did, or could not be asked


class Prover(Protocol):
    def configuration(self, profile: ResourceProfile, private_network: bool) -> str:
        """Everything that a proof depends on, as one digest. Blocks."""

    async def prove(
        self, digest: str, profile: ResourceProfile, private_network: bool, waiting: Waiting
    ) -> ProofResult:
        """Begin the proof of this configuration, or go on with it; `waiting` hears why it has not begun.

        Cancelled, it goes on by itself, and is taken up by the next call in any process.
        """

    async def end(self, digest: str) -> None:
        """Its result is kept: leave nothing of it."""


class IsolationProofs:
    """Used from one event loop. `clock`: seconds since the epoch."""

    def __init__(
        self,
        prover: Prover,
        record: Path,
        max_age_s: float,
        clock: Callable[[], float] = time.time,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._prover = prover
        self._record = record
        self._max_age_s = max_age_s
        self._clock = clock
        self._patience_s = patience_s
        self._failed: dict[str, tuple[float, IsolationVerdict]] = {}
        self._running: dict[str, asyncio.Task[IsolationVerdict]] = {}
        self._waiting: dict[str, str] = {}

    async def verdict(self, profile: ResourceProfile, private_network: bool) -> IsolationVerdict:
        digest = await asyncio.to_thread(self._prover.configuration, profile, private_network)
        age_s = await asyncio.to_thread(self._age_s, digest)
        if age_s is not None and age_s < self._max_age_s:
            if age_s > self._max_age_s / 2 and await asyncio.to_thread(self._may_renew, digest):
                self._run(digest, profile, private_network)  # so that nobody has to wait for it later
            return IsolationVerdict(True)
        failed_at, verdict = self._failed.get(digest, (0.0, None))
        if verdict is not None and 0 <= self._clock() - failed_at < _FAILURE_HOLDS_S:
            return verdict
        run = self._run(digest, profile, private_network)
        done, _ = await asyncio.wait([run], timeout=self._patience_s)
        return run.result() if done else IsolationVerdict(False, self._still_waiting(digest, profile))

    async def close(self) -> None:
        """Jobs live on, and are taken up by whoever asks next."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _run(self, digest: str, profile: ResourceProfile, private_network: bool) -> asyncio.Task[IsolationVerdict]:
        run = self._running.get(digest)
        if run is None:
            run = self._running[digest] = asyncio.create_task(self._prove(digest, profile, private_network))
        return run

    async def _prove(self, digest: str, profile: ResourceProfile, private_network: bool) -> IsolationVerdict:
        _log.info("checking that sessions of profile %r are isolated where they will run", profile.name)
        try:
            result = await self._result(digest, profile, private_network)
            verdict = result.verdict
            if verdict.verified:
                await asyncio.to_thread(self._keep, digest, result.proven_at)
            else:
                _log.warning("sessions of profile %r are not proven to be isolated: %s", profile.name, verdict.sentence)
                self._failed[digest] = (self._clock(), verdict)
                if result.ending is Ending.VERDICT:
                    await asyncio.to_thread(self._revoke, digest)
            if result.ending in (Ending.VERDICT, Ending.NO_VERDICT):
                await self._prover.end(digest)
            return verdict
        finally:
            self._waiting.pop(digest, None)
            del self._running[digest]

    async def _result(self, digest: str, profile: ResourceProfile, private_network: bool) -> ProofResult:
        """What another process has ended without a proof is proven anew: why it was none is not known here."""
        while True:
            result = await self._prover.prove(
                digest, profile, private_network, lambda why: self._waiting.__setitem__(digest, why)
            )
            if result.ending is not Ending.ELSEWHERE:
                return result
            age_s = await asyncio.to_thread(self._age_s, digest)
            if age_s is not None and age_s < self._max_age_s:
                return ProofResult(Ending.ELSEWHERE, IsolationVerdict(True), self._clock() - age_s)

    def _still_waiting(self, digest: str, profile: ResourceProfile) -> str:
        why = self._waiting.get(digest) or "it runs"
        return (
            f"It is being checked that sessions of profile {profile.name!r} are isolated where they will run, and that "
            f"check has not ended yet ({why}). It goes on: try again in a few minutes."
        )

    # What is kept.

    def _age_s(self, digest: str) -> float | None:
        """None: not proven, or at a time that has not come yet."""
        return self._since(self._kept(_PROVEN).get(digest))

    def _may_renew(self, digest: str) -> bool:
        """Now and then only, whatever came of the last time, and however many ask in how many processes."""
        since_s = self._since(self._kept(_RENEWED).get(digest))
        if since_s is not None and since_s < min(_RENEWAL_PAUSE_S, self._max_age_s / 8):
            return False
        try:
            self._write(self._kept(_PROVEN), {**self._kept(_RENEWED), digest: self._clock()})
        except (OSError, StateError):
            return False
        return True

    def _since(self, at: float | None) -> float | None:
        age_s = None if at is None else self._clock() - at
        return age_s if age_s is not None and age_s >= -60.0 else None

    def _kept(self, what: str) -> Mapping[str, float]:
        """What cannot be read proves nothing."""
        try:
            content: Any = json.loads(read_private(self._record, _LARGEST_BYTES))
            return {str(digest): float(at) for digest, at in content.get(what, {}).items()}
        except Exception:
            return {}

    def _keep(self, digest: str, at: float) -> None:
        self._write({**self._kept(_PROVEN), digest: at}, self._kept(_RENEWED))

    def _revoke(self, digest: str) -> None:
        """The probe has said no: what was proven before is true no more."""
        proven = dict(self._kept(_PROVEN))
        if proven.pop(digest, None) is not None:
            self._write(proven, self._kept(_RENEWED))

    def _write(self, proven: Mapping[str, float], renewed: Mapping[str, float]) -> None:
        newest = dict(sorted(proven.items(), key=lambda each: each[1], reverse=True)[:_KEPT])
        prepare_folder(self._record.parent.parent)
        prepare_folder(self._record.parent)
        content = {
            "version": 1,
            _PROVEN: newest,
            _RENEWED: {digest: at for digest, at in renewed.items() if digest in newest},
        }
        replace_private(self._record, json.dumps(content).encode())
