"""What the sandbox refuses, as types. Each message is a sentence for a person: what is wrong, and the remedy."""

from __future__ import annotations


class SandboxError(Exception):
    """Root of everything the sandbox raises on purpose."""


class SandboxUnavailable(SandboxError):
    """There is no working sandbox on this machine. The message names the remedy."""


class MaskUncovered(SandboxError):
    """A configured path would make something visible, or replaceable, that must never be."""

    def __init__(self, path: str, sentence: str) -> None:
        super().__init__(sentence)
        self.path = path
