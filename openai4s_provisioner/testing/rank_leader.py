"""Leads an allocation of several ranks on this machine: one real worker process for each, as several nodes would have.

Run as a program by `rank_backend`. It starts the workers, writes down who they are, ends them all when asked, and
writes down how they ended. What a test wants to go wrong is in its options: it decides nothing itself.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import time
from pathlib import Path

WORKERS, ENDED = "workers.json", "ended.json"
_GRACE_S = 8.0
_LOOK_S = 0.05

_ELSEWHERE = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'  # this rank sees another folder there


class Leader:
    def __init__(self, options: argparse.Namespace) -> None:
        self._folder = Path(options.folder)
        self._together: bool = options.together
        self._asked = ""
        self._kill_at = float("inf")
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        for rank in range(options.ranks):
            if rank != options.absent:
                self._workers[rank] = self._start(options, rank)
        _write(self._folder / WORKERS, {str(rank): worker.pid for rank, worker in self._workers.items()})

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: self._end("cancelled"))
        while any(worker.poll() is None for worker in self._workers.values()):
            if self._together and any(worker.poll() for worker in self._workers.values()):
                self._end("a rank ended")
            if time.monotonic() >= self._kill_at:
                self._signal(signal.SIGKILL)
            time.sleep(_LOOK_S)
        codes = {str(rank): worker.returncode for rank, worker in self._workers.items()}
        _write(self._folder / ENDED, {"asked": self._asked, "codes": codes})

    @staticmethod
    def _start(options: argparse.Namespace, rank: int) -> subprocess.Popen[bytes]:
        argv = [*options.argv, "--rank", str(rank)]
        number, _, places = options.elsewhere.partition("=")
        if number == str(rank):
            argv = ["unshare", "--mount", "sh", "-c", _ELSEWHERE, "sh", *places.split("=", 1), *argv]
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=dict(os.environ, OPENAI4S_TEST_RANK=str(rank)))

    def _end(self, why: str) -> None:
        if not self._asked:
            self._asked = why
            self._kill_at = time.monotonic() + _GRACE_S
            self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        for worker in self._workers.values():
            if worker.poll() is None:
                worker.send_signal(number)


def _write(path: Path, content: object) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(content))
    draft.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--ranks", required=True, type=int)
    parser.add_argument("--together", action="store_true", help="one that ends badly ends them all")
    parser.add_argument("--absent", type=int, default=-1, help="the rank that is never started")
    parser.add_argument("--elsewhere", default="", help="RANK=OTHER=PLACE: that rank sees the folder OTHER at PLACE")
    parser.add_argument("argv", nargs="+")
    Leader(parser.parse_args()).run()


if __name__ == "__main__":
    main()
