"""The zipapp's entry: one file, several programs, told apart by the first argument.

``worker``, ``batch`` and ``step`` stay outside the sandbox, ``inner`` and ``client`` run inside it, ``attack`` and
``decoy`` are the probe's two sides, and ``proof`` is the probe without a session. Each is imported only when asked for,
so that a worker starts with as few file reads as a shared file system allows.
"""

from __future__ import annotations

import sys

_USAGE = (
    "usage: worker.pyz worker|batch|proof FOLDER --rank N | step FILE --rank N | inner ... | client ... | attack ... | "
    "decoy ...\n"
)


def main(argv: list[str]) -> int:
    program = argv[0] if argv else ""
    if program == "worker":
        from . import worker

        return worker.main(argv[1:])
    if program == "batch":
        from . import batch

        return batch.main(argv[1:])
    if program == "step":
        from . import step

        return step.main(argv[1:])
    if program == "client":
        from . import client

        return client.main(argv[1:])
    if program == "inner":
        from . import inner

        return inner.main(argv[1:])
    if program == "attack":
        from ..sandbox import attacks

        return attacks.main(argv[1:])
    if program == "decoy":
        from ..sandbox import decoy

        return decoy.main(argv[1:])
    if program == "proof":
        from . import proof

        return proof.main(argv[1:])
    sys.stderr.write(_USAGE)
    return 64


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
