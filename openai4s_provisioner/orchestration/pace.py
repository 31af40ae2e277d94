"""How often the control loop looks at everything, and what it has done so far.

Quick while something begins or ends, slow while everything is steady and its workers talk (they tell at once what
matters), slower the longer something has waited already, and ever slower towards a backend that does not answer.
Decides nothing about a workload.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from .config import Policy
from .models import Desired, Kind, Phase
from .store import Situation
from .waiting import waiting_pause_s

_LONGEST_BACKOFF_S = 60.0


@dataclass(frozen=True)
class Pulse:
    """Counters since the start, and the last error, for a person who wonders what the loop does."""

    turns: int = 0  # looks at everything
    pokes: int = 0  # looks at what something happened to
    steps: int = 0  # workloads looked at, one by one
    actions: int = 0  # what was decided and carried out
    failed_steps: int = 0
    unanswered: int = 0  # questions that a backend did not answer
    last_turn_s: float = 0.0  # how long the last look at everything took
    last_error: str = ""
    last_error_at: float = 0.0  # seconds since the Unix epoch


@dataclass(frozen=True)
class _Silence:
    questions: int
    not_before: float


def is_steady(now: Situation) -> bool:
    """Nothing is awaited of this workload, and whoever would tell of a change is there to do so."""
    allocation = now.allocation
    if allocation.phase.is_terminal:
        return True
    talking = sum(1 for worker in now.workers if worker.connected and worker.ended_at is None)
    wanted = now.workload.desired is Desired.RUNNING and allocation.gone_since is None
    return wanted and allocation.phase is Phase.ACTIVE and talking >= allocation.nodes


def pause_s(now: Situation, at: float, policy: Policy) -> float:
    """Until this workload is worth another look. `at`: of the clock that its rows are written with."""
    quick, slow = policy.period_s, max(policy.period_s, policy.steady_period_s)
    if is_steady(now):
        return slow
    workload, allocation = now.workload, now.allocation
    if workload.desired is Desired.STOPPED or allocation.gone_since is not None:
        return quick
    if allocation.phase is Phase.PENDING:
        starts_in = None if allocation.estimated_start is None else allocation.estimated_start - at
        return waiting_pause_s(max(0.0, at - allocation.created_at), starts_in, quick, slow)
    if allocation.paused_since is not None:  # its workers tell when it goes on
        return slow
    if workload.kind is Kind.BATCH and allocation.granted_at is not None:  # its end is all that is awaited
        return waiting_pause_s(max(0.0, at - allocation.granted_at), None, quick, slow)
    return quick


class Pace:
    """Times are of the loop's own clock, which never jumps."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._wanted: dict[str, float] = {}  # workload -> until it is worth another look
        self._silent: dict[str, _Silence] = {}
        self.pulse = Pulse()

    @property
    def period_s(self) -> float:
        """Until everything is looked at again."""
        slow = max(self._policy.period_s, self._policy.steady_period_s)
        return min(self._wanted.values(), default=slow)

    def saw(self, now: Situation, at: float) -> None:
        """`at`: of the clock that the rows are written with."""
        self._wanted[now.workload.workload_id] = pause_s(now, at, self._policy)

    def keep_only(self, driven: Collection[str]) -> None:
        """What is not among these is over, or driven by somebody else."""
        self._wanted = {key: pause for key, pause in self._wanted.items() if key in set(driven)}

    def answered(self, backend: str) -> None:
        self._silent.pop(backend, None)

    def did_not_answer(self, backend: str, now_s: float) -> None:
        before = self._silent.get(backend)
        questions = before.questions + 1 if before else 1
        pause = min(_LONGEST_BACKOFF_S, self._policy.period_s * 2 ** min(questions - 1, 10))
        self._silent[backend] = _Silence(questions, now_s + pause)
        self.count(unanswered=1)

    def may_ask(self, backend: str, now_s: float) -> bool:
        """Whether a look at everything asks this backend. What something happened to is asked about at once."""
        silence = self._silent.get(backend)
        return silence is None or now_s >= silence.not_before

    @property
    def silent_backends(self) -> tuple[str, ...]:
        return tuple(sorted(self._silent))

    def count(self, **more: int) -> None:
        self.pulse = replace(self.pulse, **{name: getattr(self.pulse, name) + value for name, value in more.items()})

    def failed(self, error: str, at: float) -> None:
        self.count(failed_steps=1)
        self.pulse = replace(self.pulse, last_error=error, last_error_at=at)

    def turned(self, took_s: float) -> None:
        self.count(turns=1)
        self.pulse = replace(self.pulse, last_turn_s=took_s)
