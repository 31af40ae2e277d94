"""The gateway's two seams to the control plane: who may come in (asked), and what happened (told).

The gateway never reads the store and knows no secret: it shows a credential to the front desk and hears a verdict.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from ..orchestration.models import Registration


class LinkState(enum.StrEnum):
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    GONE = "gone"


class FrontDesk(Protocol):
    """Called in the gateway's thread; must not block. A failed Future means "could not ask": close, burn nothing."""

    def register(self, credential: str, resume_key: bytes, host: str) -> Future[Registration | None]:
        """Verify, check the live epoch, burn and keep the resume key, in one transaction. None refuses."""

    def resume_key(self, allocation_id: str, rank: int) -> Future[bytes | None]:
        """The key its worker brought, while that allocation is live."""

    def is_expected(self, allocation_id: str, epoch: int) -> Future[bool]:
        """Whether a worker that nobody collected may still be wanted."""


class GatewayObserver(Protocol):
    """Called in the gateway's thread; must only post elsewhere."""

    def worker_registered(self, registration: Registration, host: str, generation: str) -> None: ...

    def worker_message(self, allocation_id: str, rank: int, message: Mapping[str, Any]) -> None: ...

    def worker_link(self, allocation_id: str, rank: int, state: LinkState) -> None: ...
