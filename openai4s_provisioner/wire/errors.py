"""What the protocol tables raise. The wire runs on nodes, so it shares nothing with the server's own errors."""

from __future__ import annotations


class ProtocolError(Exception):
    """The peer, or our own caller, did what the tables do not hold. Nothing was changed by it."""
