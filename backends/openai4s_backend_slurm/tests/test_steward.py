"""What the supervisor on a node does with signals, apart from what the tests of real jobs show of it."""

from __future__ import annotations

import signal
from typing import Any

from openai4s_backend_slurm import steward


class WorkerThatIsSignalledWhileASignalIsPassedOn:
    """The second one comes in just then, as from a scheduler that means it."""

    pid = 0

    def __init__(self, asked: list[int]) -> None:
        self._asked = asked
        self.got: list[int] = []

    def send_signal(self, number: int) -> None:
        if not self.got:
            self._asked.append(signal.SIGTERM)
        self.got.append(number)

    def poll(self) -> int | None:
        return 0 if self.got else None


def test_no_signal_is_lost_that_comes_in_while_another_is_passed_on() -> None:
    asked: list[int] = [signal.SIGINT]
    worker: Any = WorkerThatIsSignalledWhileASignalIsPassedOn(asked)
    assert steward._wait(worker, asked) == 0
    assert worker.got == [signal.SIGINT, signal.SIGTERM]
