"""Where a waiting job stands among those that want the same machines: an extra of little cost, asked now and then.

It is left out where others' jobs are hidden, where the answer fails, and for jobs that wait for something else than
their turn. It decides nothing.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

from . import parse
from .broker import Broker, BrokerError
from .lookup import on
from .parse import QueueRow

_HOLDS_S = 120.0  # it lists what everybody has waiting there
_HIDDEN_HOLDS_S = 3600.0
_TURN = re.compile(r"\(?(?:Priority|Resources|ReqNodeNotAvail)\b")


class Positions:
    """Called from several threads."""

    def __init__(self, broker: Broker, clock: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self._clock = clock
        self._guard = threading.Lock()
        self._known: dict[tuple[str, str], tuple[float, list[tuple[int, int]]]] = {}
        self._others_are_hidden: dict[str, tuple[float, bool]] = {}

    def of(self, row: QueueRow, cluster: str) -> int | None:
        """1 for the next one. None when it is not known, or says nothing."""
        if not _TURN.match(row.reason) or row.priority is None or not row.partition or "," in row.partition:
            return None
        with self._guard:
            ranking = self._ranking(row.partition, cluster)
        mine = (-row.priority, row.number)
        ahead = [each for each in ranking if each < mine]
        return len(ahead) + 1 if mine in ranking else None

    def _ranking(self, partition: str, cluster: str) -> list[tuple[int, int]]:
        asked_at, ranking = self._known.get((partition, cluster), (-_HOLDS_S, []))
        if self._clock() - asked_at >= _HOLDS_S:
            ranking = [] if self._hides_others(cluster) else self._ask(partition, cluster)
            self._known[partition, cluster] = (self._clock(), ranking)
        return ranking

    def _ask(self, partition: str, cluster: str) -> list[tuple[int, int]]:
        asked = ["--noheader", "--states=PENDING", f"--partition={partition}", "--format=%A|%Q", *on(cluster)]
        try:
            lines = self._broker.run(["squeue", "--all", *asked]).stdout.splitlines()
        except BrokerError:
            return []
        pairs = [line.partition("|")[::2] for line in lines]
        numbers = [(parse.number_of(number), parse.number_of(priority)) for number, priority in pairs]
        return [(-priority, number) for number, priority in numbers if number is not None and priority is not None]

    def _hides_others(self, cluster: str) -> bool:
        asked_at, hidden = self._others_are_hidden.get(cluster, (-_HIDDEN_HOLDS_S, True))
        if self._clock() - asked_at >= _HIDDEN_HOLDS_S:
            try:
                settings = self._broker.run(["scontrol", *on(cluster), "show", "config"]).stdout
            except BrokerError:
                return True
            found = re.search(r"^PrivateData\s*=\s*(.*)$", settings, re.MULTILINE)
            hidden = found is None or "jobs" in found.group(1)
            self._others_are_hidden[cluster] = (self._clock(), hidden)
        return hidden
