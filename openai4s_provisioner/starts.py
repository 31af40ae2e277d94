"""Starts of kernels that are no sessions yet: they are being checked, or were refused. In memory alone, and bounded.

A session's row is written once it was admitted, which may take seconds; a refusal writes nothing at all. So that a
person sees what happens from the first moment on, both are told from here. Nothing is promised: no condition holds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from .orchestration.errors import ProvisionerError, Refused, SessionEnded
from .orchestration.reasons import Reason

CHECKING = "Checking that sessions of this profile are isolated where they will run."
_MOST = 64
_TOLD_S = 3600.0


@dataclass(frozen=True)
class Start:
    """One of them. `reason` is None while it is being checked. `asked_at`: seconds since the Unix epoch."""

    kernel_id: str
    kernel_name: str
    profile: str
    profile_display_name: str
    notebook_path: str
    asked_at: float = field(default_factory=time.time)
    reason: Reason | None = None
    sentence: str = CHECKING


class StartBoard:
    """Usable from any thread."""

    def __init__(self) -> None:
        self._starts: OrderedDict[str, Start] = OrderedDict()
        self._guard = threading.Lock()

    @contextlib.contextmanager
    def shown(self, start: Start, tell: Callable[[Start], None]) -> Iterator[None]:
        """From now on it is on the board, and stays there with its sentence if this ends with a refusal.

        `tell` is called with what is new.
        """
        if self._put(start):
            tell(start)
        try:
            yield
        except SessionEnded:  # it was given up, or is a session that has its reason
            self.forget(start.kernel_id)
            raise
        except ProvisionerError as error:
            reason = error.reason if isinstance(error, Refused) else Reason.BACKEND_UNAVAILABLE
            refused = replace(start, reason=reason, sentence=str(error))
            self._put(refused)
            tell(refused)
            raise
        except BaseException:
            self.forget(start.kernel_id)
            raise

    def forget(self, kernel_id: str) -> None:
        """It is a session now, or its kernel is gone."""
        with self._guard:
            self._starts.pop(kernel_id, None)

    def all(self) -> tuple[Start, ...]:
        """The newest first. A refusal that no kernel manager keeps a kernel for is told for a while."""
        since = time.time() - _TOLD_S
        with self._guard:
            return tuple(
                each for each in reversed(self._starts.values()) if each.reason is None or each.asked_at > since
            )

    def _put(self, start: Start) -> bool:
        with self._guard:
            is_new = self._starts.get(start.kernel_id) != start
            self._starts[start.kernel_id] = start
            self._starts.move_to_end(start.kernel_id)
            while len(self._starts) > _MOST:
                self._starts.popitem(last=False)
            return is_new
