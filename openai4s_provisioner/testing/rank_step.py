"""Runs one copy of a program for each rank, at once, and exits as the worst of them: what a step over nodes does.

Run as a program: ``rank_step.py RANKS ARGV ...``. SIGTERM ends all copies. A copy is told its rank as its last words.
As schedulers' own programs do, it says on stderr which copy ended badly.
"""

from __future__ import annotations

import signal
import subprocess
import sys


def main(argv: list[str]) -> int:
    copies = [subprocess.Popen([*argv[1:], "--rank", str(rank)]) for rank in range(int(argv[0]))]

    def end(*_: object) -> None:
        for copy in copies:
            if copy.poll() is None:
                copy.terminate()

    signal.signal(signal.SIGTERM, end)
    codes = [copy.wait() for copy in copies]
    for rank, code in enumerate(codes):
        if code:
            sys.stderr.write(f"copy {rank} exited with {code}\n")
    return max(128 - code if code < 0 else code for code in codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
