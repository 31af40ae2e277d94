"""One daemon of a cluster: started in the foreground as a child, so that its pid is never guessed from a file.

It can be stopped, killed, hung and woken, as faults are. Decides nothing about the order of daemons.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .accounts import Account
from .errors import LabError

_PATIENCE_S = 15.0


class Daemon:
    def __init__(
        self, name: str, argv: Sequence[str], account: Account, environment: Mapping[str, str], output: Path
    ) -> None:
        self.name = name
        self._argv = list(argv)
        self._account = account
        self._environment = dict(environment)
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise LabError(f"{self.name} was not started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        if self.is_running:
            return
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                cwd="/",
                start_new_session=True,
                **self._account.popen_options(),
            )

    def stop(self) -> None:
        """End it as an administrator would, and wait for it."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut would. What a node's daemon was running lives on."""
        self._end(signal.SIGKILL)

    def hang(self) -> None:
        """It accepts connections still, the kernel does that, and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def wake(self) -> None:
        if self.is_running:
            os.kill(self.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def hung(self) -> Iterator[None]:
        self.hang()
        try:
            yield
        finally:
            self.wake()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        self.stop()
        try:
            yield
        finally:
            self.start()

    def complaint(self) -> str:
        """Its last words, for an error text."""
        with contextlib.suppress(OSError):
            return "\n".join(self._output.read_text(errors="replace").splitlines()[-5:])
        return ""

    def _end(self, number: signal.Signals) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(number)
        self.wake()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_PATIENCE_S)
