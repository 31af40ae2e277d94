"""A process that is really stopped for longer than others wait: its session is taken over, and it lets it go."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from .conftest import processes_below

# Clocks of seconds instead of a minute. The lock of a process on another host may say nothing: here it is taken away.
HOLDER = """
import sys
from openai4s_provisioner.orchestration import daemons, reconciler
daemons.SILENCE_S, daemons.BEAT_EVERY_S, reconciler.BEAT_EVERY_S, reconciler._ADOPT_EVERY_S = 3.0, 0.3, 0.3, 0.3
daemons._read_boot_id = lambda: {machine!r}
from jupyter_client.manager import KernelManager
km = KernelManager(kernel_name={kernel!r})
km.start_kernel()
print("running", flush=True)
for line in sys.stdin:
    print(km.is_alive(), flush=True)
km.shutdown_kernel()
"""


class Holder:
    def __init__(self, machine: str, kernel: str, work: Path) -> None:
        program = HOLDER.format(machine=machine, kernel=kernel)
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", program], cwd=work, stdin=pipe, stdout=pipe, text=True)
        assert self._line() == "running"

    def is_alive(self) -> bool:
        assert self.process.stdin is not None
        self.process.stdin.write("?\n")
        self.process.stdin.flush()
        return self._line() == "True"

    def end(self) -> None:
        self.process.communicate(timeout=60)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


def test_a_session_of_a_stopped_process_is_taken_over_once_and_shown_dead_when_it_goes_on(
    place: Any, work: Path, session_kernel: str, no_process_left: Any, wait_until: Any
) -> None:
    state = place.home / ".local/state/openai4s"

    def workloads() -> list[tuple[str, str]]:
        connection = sqlite3.connect(f"file:{state / 'state.db'}?mode=ro", uri=True)
        try:
            found: list[tuple[str, str]] = connection.execute(
                "SELECT phase, coalesce(reason, '') FROM workload ORDER BY created_at"
            ).fetchall()
        finally:
            connection.close()
        return found

    victim = Holder("this machine", session_kernel, work)
    (worker,) = (p for p in processes_below(place.root, ".pyz worker ") if p.cmdline()[2].endswith(".pyz"))
    victim.process.send_signal(signal.SIGSTOP)
    try:
        for lock in (state / "daemons").iterdir():
            lock.unlink()
        heir = Holder("another machine", session_kernel, work)
        wait_until(lambda: workloads()[0][1] == "SERVER_GONE", "the session is taken over, and ended", 60)
        wait_until(lambda: not worker.is_running(), "its allocation is given back", 60)
    finally:
        victim.process.send_signal(signal.SIGCONT)
    wait_until(lambda: not victim.is_alive(), "its former owner shows the kernel dead", 60)
    assert heir.is_alive(), "the heir's own kernel is nobody else's business"
    victim.end()
    heir.end()
    assert [victim.process.returncode, heir.process.returncode] == [0, 0]
    (taken, own) = workloads()
    assert taken[1] == "SERVER_GONE"
    assert own == ("COMPLETED", "USER_CANCELLED")
    connection = sqlite3.connect(f"file:{state / 'state.db'}?mode=ro", uri=True)
    submits = connection.execute("SELECT submit_attempts FROM allocation").fetchall()
    connection.close()
    assert submits == [(1,), (1,)], "nothing is submitted twice, and nothing anew"
    no_process_left()
