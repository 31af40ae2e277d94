"""The contract suite can fail: each backend here breaks one promise, and the suite says so."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from openai4s_backend_local import shim
from openai4s_backend_local.backend import LocalBackend
from openai4s_provisioner.orchestration.models import ExternalHandle
from openai4s_provisioner.orchestration.ports import (
    AllocationBackend,
    AllocationRequest,
    Observation,
    Observed,
    SubmitResult,
)
from openai4s_provisioner.testing.backend_contract import BackendContract
from openai4s_provisioner.testing.backend_lab import BackendLab


class BackendThatSubmitsTwice(LocalBackend):
    """Forgets that a token was submitted."""

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        return await super().submit(replace(request, token=uuid.uuid4().hex))


class BackendThatForgetsAtRestart(LocalBackend):
    """Knows only the tokens that this very object submitted."""

    _mine: frozenset[str] = frozenset()

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        self._mine |= {request.token}
        return await super().submit(request)

    async def find_by_token(self, token: str) -> ExternalHandle | None:
        return await super().find_by_token(token) if token in self._mine else None


class BackendWhoseCancelSparesDescendants(LocalBackend):
    """Kills the worker and believes that this was all."""

    def _cancel(self, token: str) -> None:
        receipt = self._receipts.read(token)
        if receipt is None or receipt.started is None:
            return
        for process in shim.descendants(receipt.started.pid):
            if process.session == receipt.started.pid:
                shim.send_signal(process, signal.SIGKILL)


class BackendWhoseCancelTrustsTheProgram(LocalBackend):
    """Asks the worker to end and never insists."""

    def _cancel(self, token: str) -> None:
        receipt = self._receipts.read(token)
        if receipt is not None and receipt.started is not None:
            self._receipts.ask_cancel(token)
            for process in shim.descendants(receipt.started.pid):
                shim.send_signal(process, signal.SIGTERM)


class BackendThatAnswersOnlyWhatItKnows(LocalBackend):
    async def observe(self, handles: Sequence[ExternalHandle]) -> Mapping[ExternalHandle, Observation]:
        answers = await super().observe(handles)
        return {handle: seen for handle, seen in answers.items() if seen.state is not Observed.GONE}


class BackendThatTakesTheWorkersEndForTheEnd(LocalBackend):
    """Does not look at the descendants."""

    async def observe(self, handles: Sequence[ExternalHandle]) -> Mapping[ExternalHandle, Observation]:
        answers = dict(await super().observe(handles))
        for handle, seen in answers.items():
            if "the worker ended" in seen.backend_detail:
                answers[handle] = Observation(Observed.COMPLETED)
        return answers


class BackendThatBlocksTheLoop(LocalBackend):
    async def _in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        if call == self._cancel:
            await asyncio.to_thread(call, *arguments)
            time.sleep(1.5)  # noqa: ASYNC251 - this is what it does wrong
            return None
        return call(*arguments)


class BackendThatForgetsTooSoon(LocalBackend):
    async def acknowledge_terminal(self, handle: ExternalHandle) -> None:
        with self._receipts.locked():
            self._receipts.remove(handle.value)


class BackendThatPassesItsEnvironmentOn(LocalBackend):
    async def submit(self, request: AllocationRequest) -> SubmitResult:
        from openai4s_backend_local import launch

        small = launch._small_environment
        launch._small_environment = lambda allocation_id: {**os.environ, **small(allocation_id)}
        try:
            return await super().submit(request)
        finally:
            launch._small_environment = small


class BrokenLab(BackendLab):
    """The same bench, with another backend on it."""

    broken: type[LocalBackend]

    def open_backend(self) -> AllocationBackend:
        sound = super().open_backend()
        assert isinstance(sound, LocalBackend)
        sound.__class__ = self.broken
        return sound


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (BackendThatSubmitsTwice, "test_a_token_submitted_twice_is_one_allocation"),
        (BackendThatSubmitsTwice, "test_a_restarted_server_finds_its_allocation_by_token"),
        (BackendThatForgetsAtRestart, "test_a_restarted_server_finds_its_allocation_by_token"),
        (BackendWhoseCancelSparesDescendants, "test_cancel_ends_the_whole_tree"),
        (BackendWhoseCancelTrustsTheProgram, "test_cancel_ends_a_program_that_ignores_the_request"),
        (BackendThatAnswersOnlyWhatItKnows, "test_every_handle_asked_for_is_answered_and_a_stranger_is_gone"),
        (BackendThatTakesTheWorkersEndForTheEnd, "test_it_is_not_over_while_a_descendant_lives"),
        (BackendThatBlocksTheLoop, "test_nothing_blocks_the_callers_loop"),
        (BackendThatForgetsTooSoon, "test_an_acknowledgement_forgets_only_what_is_over"),
    ],
)
def test_the_suite_finds_the_broken_promise(backend_lab: BackendLab, broken: type[LocalBackend], test: str) -> None:
    lab = _broken(backend_lab, broken)
    with pytest.raises(AssertionError):
        getattr(BackendContract(), test)(lab)


def test_the_suite_finds_a_leaking_environment(backend_lab: BackendLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = _broken(backend_lab, BackendThatPassesItsEnvironmentOn)
    with pytest.raises(AssertionError):
        BackendContract().test_no_secret_of_the_server_reaches_the_allocation(lab, monkeypatch)


def _broken(lab: BackendLab, broken: type[LocalBackend]) -> BrokenLab:
    made = BrokenLab(**{**vars(lab), "patience_s": 2.0})
    object.__setattr__(made, "broken", broken)
    return made
