"""Bytes in motion: the readiness loop, the link with its streams, and the relays. Standard library only."""
