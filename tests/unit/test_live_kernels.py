"""What `poll` reads of a kernel whose worker goes down with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openai4s_provisioner.live_kernels import _Live, _state
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
