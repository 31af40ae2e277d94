"""Where this server takes workers in, and which of these ways a worker is told: pure, one rule for every backend.

A worker of this machine gets the private Unix socket, a worker of another one the network's addresses. A profile may
say otherwise. It refuses to name a way that cannot lead here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import Refused
from .models import ResourceProfile, WorkerTransport
from .ports import AllocationBackend, RunsHere
from .reasons import Reason

ADDRESS_RECORD = "server.json"  # beside an attempt's files; the worker knows this name, too


@dataclass(frozen=True)
class WaysIn:
    """`unix:...` and `tls:host:port` addresses, and the digest of the certificate that waits at the latter."""

    unix: str
    network: tuple[str, ...] = ()
    certificate_sha256: str | None = None

    def for_workers(self, profile: ResourceProfile, backend: AllocationBackend | None) -> tuple[str, ...]:
        """In the order in which to try. Raises Refused when there is none."""
        if not needs_network(profile, backend):
            return (self.unix,)
        if not self.network:
            raise closed_to_network(profile)
        return self.network


def address_record(addresses: Sequence[str], certificate_sha256: str | None) -> str:
    """The content of the file in which a worker that lost its server finds it again."""
    return json.dumps({"addresses": list(addresses), "certificate_sha256": certificate_sha256})


def needs_network(profile: ResourceProfile, backend: AllocationBackend | None) -> bool:
    if profile.transport is WorkerTransport.AUTO:
        return not (isinstance(backend, RunsHere) and backend.runs_here)
    return profile.transport is WorkerTransport.TCP


def closed_to_network(profile: ResourceProfile) -> Refused:
    return Refused(
        Reason.INVALID_SPEC,
        f"Sessions of profile {profile.name!r} connect over the network, and this server listens on no port. "
        "Set OPENAI4S_WORKER_LISTEN or c.OpenAI4S.worker_listen, for example to 9000-9099, and start the server again.",
    )
