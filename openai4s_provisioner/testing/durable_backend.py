"""A backend whose allocations are files, so that they outlive the process that asked for them.

Not idempotent on purpose: a token that is sent twice makes two allocations, which a test then counts. Nothing runs.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openai4s_provisioner.orchestration.models import ExternalHandle, ResourceProfile
from openai4s_provisioner.orchestration.ports import (
    AllocationRequest,
    Created,
    Diagnostics,
    IsolationVerdict,
    Observation,
    Observed,
    SubmitResult,
    Unknown,
)
from openai4s_provisioner.orchestration.reasons import Reason

_OVER = frozenset({Observed.COMPLETED, Observed.FAILED, Observed.CANCELLED})


class BackendOfFiles:
    name = "files"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loses_answer = folder / "loses-the-next-answer"
        folder.mkdir(parents=True, exist_ok=True)

    def lose_next_answer(self) -> None:
        self._loses_answer.touch()

    def allocations(self) -> dict[str, dict[str, Any]]:
        """All that ever existed, by handle: token, workload and state."""
        return {path.stem: json.loads(path.read_text()) for path in sorted(self._folder.glob("*.json"))}

    def running(self) -> list[str]:
        """The workload of every allocation that is not over, once per allocation."""
        return [each["workload"] for each in self.allocations().values() if Observed(each["state"]) not in _OVER]

    def lose(self, reason: Reason = Reason.NODE_FAILED) -> None:
        """Whatever runs fails."""
        for handle, each in self.allocations().items():
            if Observed(each["state"]) not in _OVER:
                self._write(handle, {**each, "state": Observed.FAILED, "reason": reason})

    def check_profile(self, profile: ResourceProfile) -> None:
        pass

    async def isolates_session_credentials(
        self, profile: ResourceProfile, private_network: bool = False
    ) -> IsolationVerdict:
        return IsolationVerdict(True)

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        handle = uuid.uuid4().hex
        self._write(handle, {"token": request.token, "workload": request.workload_id, "state": Observed.RUNNING})
        if self._loses_answer.exists():
            self._loses_answer.unlink()
            return Unknown(request.token, "the answer was lost")
        return Created(ExternalHandle(self.name, handle))

    async def observe(self, handles: Sequence[ExternalHandle]) -> Mapping[ExternalHandle, Observation]:
        known = self.allocations()
        return {handle: _seen(known.get(handle.value)) for handle in handles}

    async def cancel(self, handle: ExternalHandle) -> None:
        each = self.allocations().get(handle.value)
        if each is not None and Observed(each["state"]) not in _OVER:
            self._write(handle.value, {**each, "state": Observed.CANCELLED})

    async def find_by_token(self, token: str) -> ExternalHandle | None:
        known = self.allocations().items()
        return next((ExternalHandle(self.name, handle) for handle, each in known if each["token"] == token), None)

    async def diagnostics(self, handle: ExternalHandle) -> Diagnostics:
        return Diagnostics()

    async def close(self) -> None:
        pass

    def _write(self, handle: str, content: Mapping[str, Any]) -> None:
        draft = self._folder / f".{handle}-{os.getpid()}"
        draft.write_text(json.dumps(content))
        draft.rename(self._folder / f"{handle}.json")


def _seen(allocation: Mapping[str, Any] | None) -> Observation:
    if allocation is None:
        return Observation(Observed.GONE)
    reason = Reason(allocation["reason"]) if "reason" in allocation else None
    return Observation(Observed(allocation["state"]), reason)
