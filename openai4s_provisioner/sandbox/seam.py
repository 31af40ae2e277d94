"""The one thing a sandbox does for us: put something before an argv that makes it run confined.

Bubblewrap is behind it today; the seam leaves room for a container runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .covers import CoveredPlace
from .errors import SandboxUnavailable as SandboxUnavailable
from .spec import SandboxSpec

SHARED_INSIDE = "/run/openai4s"
PROGRAM_INSIDE = "/run/openai4s-program"
COMMANDS_INSIDE = "/run/openai4s-bin"  # at the end of PATH inside


class Sandbox(Protocol):
    def wrap(self, spec: SandboxSpec, argv: Sequence[str], *, keep_fds: Sequence[int] = ()) -> list[str]:
        """The argv that runs `argv` confined. The caller passes `keep_fds` on to it; they stay open inside.

        Its end, however it comes, is the end of everything inside; so is the end of the thread that started it.
        Raises MaskUncovered when the spec would show what it masks.
        """

    def covered(self, spec: SandboxSpec) -> list[CoveredPlace]:
        """What `wrap` hides or protects, and may come to lie bare when it is replaced outside."""


class NoSandbox:
    """Where there is none: whatever is to be confined is refused, with the remedy."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    def wrap(self, spec: SandboxSpec, argv: Sequence[str], *, keep_fds: Sequence[int] = ()) -> list[str]:
        raise SandboxUnavailable(self._sentence)

    def covered(self, spec: SandboxSpec) -> list[CoveredPlace]:
        return []
