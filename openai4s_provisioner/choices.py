"""What was chosen for kernels that are about to be started, by the id that they will have. In memory, and bounded."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from .orchestration.choice import ResourceChoice

_MOST = 256


@dataclass(frozen=True)
class ChosenStart:
    """`profile` "": the one that the kernelspec names."""

    profile: str = ""
    choice: ResourceChoice = field(default_factory=ResourceChoice)


class ChoiceBook:
    """Usable from any thread. A choice stays: further starts of the same kernel find it again."""

    def __init__(self) -> None:
        self._chosen: OrderedDict[str, ChosenStart] = OrderedDict()
        self._guard = threading.Lock()

    def choose(self, kernel_id: str, chosen: ChosenStart) -> None:
        with self._guard:
            self._chosen[kernel_id] = chosen
            self._chosen.move_to_end(kernel_id)
            while len(self._chosen) > _MOST:
                self._chosen.popitem(last=False)

    def of(self, kernel_id: str) -> ChosenStart:
        with self._guard:
            return self._chosen.get(kernel_id, ChosenStart())
