"""The protocol: bytes in, events out. No socket and no clock. Standard library only."""
