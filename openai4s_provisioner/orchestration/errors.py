"""One exception root. The type says whose fault it is and whether to try again; nobody matches on text.

A class's docstring says when it is raised; its message is written once, where it is raised.
"""

from __future__ import annotations

from typing import Self

from .reasons import Reason


class ProvisionerError(Exception):
    """Root of everything this project raises on purpose."""


class ConfigError(ProvisionerError):
    """`cluster.toml`, a trait or an environment variable is wrong. Names file, key and value. Not retryable."""

    def __init__(self, sentence: str, key: str = "") -> None:
        """`key`: of a table that was handed on unread, the key it is about; whoever has the file knows its line."""
        super().__init__(sentence)
        self.key = key


class StateError(ProvisionerError):
    """Our own state on disk cannot be used (corrupt, unwritable, newer than the code). Never taken for empty."""


class _WithReason(ProvisionerError):
    """Has a Reason. `detail` is what there is to say beyond the reason's own sentence: what is stored beside it."""

    def __init__(self, reason: Reason, sentence: str, detail: str | None = None) -> None:
        """`sentence`: all that a person reads. Without `detail` none of it is the reason's own."""
        super().__init__(sentence)
        self.reason = reason
        self.detail = sentence if detail is None else detail

    @classmethod
    def because(cls, reason: Reason, detail: str = "") -> Self:
        """A person reads the reason's own sentence, and what follows on it here."""
        return cls(reason, f"{reason.sentence} {detail}".strip(), detail)


class Refused(_WithReason):
    """Admission or a backend said no. Nothing durable was written. Not retryable as it stands."""


class NotFound(ProvisionerError):
    """What was named does not exist, or belongs to somebody else: the two look alike to whoever asks."""


class SessionEnded(_WithReason):
    """The session ended, or was stopped, before its kernel became ready, or while it was used."""


class CouldNotAsk(ProvisionerError):
    """A backend could not be asked. It is an answer of its own: it ends nothing, frees nothing. Retryable."""


class IllegalTransition(ProvisionerError):
    """An event that the phase table does not hold for this phase. Nothing was changed."""
