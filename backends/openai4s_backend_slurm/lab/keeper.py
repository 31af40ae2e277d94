"""Ends a cluster when whoever made it is gone, however that happened: it waits for the end of its standard input.

Started beside every cluster that belongs to one process. Does nothing where that process cleaned up itself.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from .cluster import end


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # its maker's end is the only reason to act
    while os.read(0, 4096):
        pass
    end(Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
