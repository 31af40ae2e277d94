"""What `poll` reads of a kernel whose worker goes down with it, and how its session is followed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from openai4s_provisioner.jupyter.announcer import Announcer
from openai4s_provisioner.live_kernels import LiveKernels, _Live, _state
from openai4s_provisioner.orchestration.errors import StateError
from openai4s_provisioner.orchestration.models import (
    Allocation,
    Binding,
    Desired,
    KernelExit,
    Kind,
    Phase,
    ReadyCheck,
    SessionSpec,
    WorkerRow,
    Workload,
)
from openai4s_provisioner.orchestration.store import LaunchRow, Situation

WORKLOAD = Workload(
    "w", Kind.SESSION, "me", "p", Desired.RUNNING, Phase.ACTIVE, 1, SessionSpec("/w", "/w", "python3"), 0.0
)
EXIT = KernelExit("l", None, 15, "", 9.0)
LIVES = Situation(
    WORKLOAD,
    Allocation("a", "w", 1, "t", "b", Phase.ACTIVE, 0.0),
    (WorkerRow("a", 0, "host", 1.0, True),),
    (Binding("k", "w", "", 0.0, "l", 2.0),),
    (LaunchRow("l", "w", "k", 0.0, True, 7, 1.0, 2.0, None),),
)
KERNEL_DIED = replace(LIVES, launches=(replace(LIVES.launches[0], exit=EXIT),))
WORKER_ENDED_TOO = replace(KERNEL_DIED, workers=(replace(LIVES.workers[0], ended_at=9.0),))
STOPPED = replace(WORKER_ENDED_TOO, workload=replace(WORKLOAD, desired=Desired.STOPPED))
OVER = replace(WORKER_ENDED_TOO, workload=replace(WORKLOAD, phase=Phase.FAILED))
NEXT_EPOCH = replace(LIVES, workload=replace(WORKLOAD, epoch=2), launches=(replace(LIVES.launches[0], launch_id="l2"),))


@pytest.mark.parametrize(
    ("situation", "alive", "final"),
    [
        (LIVES, True, False),
        (KERNEL_DIED, False, False),
        (WORKER_ENDED_TOO, True, False),
        (STOPPED, False, True),
        (OVER, False, True),
        (NEXT_EPOCH, True, False),
    ],
    ids=["lives", "its kernel died", "its worker ended too: undecided", "stopped", "over", "recovering"],
)
def test_poll_says_alive_until_the_end_is_certain(situation: Situation, alive: bool, final: bool) -> None:
    live = _Live("k", "w", "a", "l", lambda change: None, ReadyCheck.EXECUTE)
    state = _state(situation, live)
    assert (state.alive, state.final) == (alive, final)


class SessionsWhoseStateCannotBeReadAtFirst:
    """What is asked of the session service, over a state that fails at every second look."""

    def __init__(self, *situations: Situation) -> None:
        self._left = list(situations)
        self._fails = True

    async def changes(self, workload_id: str) -> AsyncIterator[Situation]:
        while self._left:
            self._fails = not self._fails
            if not self._fails:
                raise StateError("the state file has been locked")
            yield self._left.pop(0)


def test_a_session_is_followed_to_its_end_though_the_state_cannot_be_read_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("openai4s_provisioner.live_kernels._FOLLOW_AGAIN_S", 0.0)
    told: list[Phase] = []

    def announce(change: Any) -> None:
        told.append(change.phase)
        if len(told) == 1:
            raise RuntimeError("the loop of whoever is told has closed")

    async def scenario() -> _Live:
        sessions: Any = SessionsWhoseStateCannotBeReadAtFirst(LIVES, LIVES, OVER)
        gateway: Any = None
        kernels = LiveKernels(sessions, gateway, 1.0)
        live = _Live("k", "w", "a", "l", announce, ReadyCheck.EXECUTE)
        await asyncio.wait_for(kernels._follow(live), 5.0)
        return live

    assert asyncio.run(scenario()).state.final
    assert told == [Phase.ACTIVE, Phase.FAILED]
    assert "cannot be followed for now" in caplog.text


def test_a_change_told_to_a_loop_that_has_closed_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def made() -> Announcer:
        return Announcer(None, logging.getLogger("test"), "k")

    announcer = asyncio.run(made())
    monkeypatch.setattr(announcer._loop, "is_closed", lambda: False)  # it closes right after any look at it
    notice: Any = object()
    announcer.announce_from_any_thread(notice)
