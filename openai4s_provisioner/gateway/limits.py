"""What the gateway bears before it closes: one frozen value, so that a test can shorten every clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Times in seconds. Too small turns honest workers on slow machines away; too large lets hostile peers linger."""

    handshake_s: float = 30.0  # in total, from accept to our answer, however many reads it takes
    line_bytes: int = 65536
    unauthenticated_peers: int = 64  # over it a peer is closed at once; an honest worker dials again
    backlog: int = 1024  # a server that restarts is dialled by all its workers at once
    window_bytes: int = 262144  # per stream; the worst wait of an interrupt is about this over the link's rate
    reconnect_s: float = 300.0  # how long a cut link may stay away before its worker counts as gone
    orphan_s: float = 900.0  # how long a worker nobody waits for stays parked before we ask whether it is expected
    idle_tick_s: float = 60.0
    stop_s: float = 5.0
