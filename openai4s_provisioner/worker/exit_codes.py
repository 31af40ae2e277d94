"""What a worker's exit code says, for the receipts that a backend keeps."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    ENDED = 0
    BAD_USAGE = 64
    NEVER_REGISTERED = 69  # no server took the credential in time
    UNRECORDED = 74  # of a BATCH: how its command ended could not be written down
    SERVER_GONE = 75  # the server was there, went away, and stayed away
    BAD_ATTEMPT = 78  # the attempt file is missing, foreign or malformed
