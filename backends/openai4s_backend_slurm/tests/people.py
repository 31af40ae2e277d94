"""Persons for tests: each an ordinary user with a private home, a `cluster.toml` of its own and one session kernel.

The test stays outside, as the site's administrator; what the person's program says is collected as it comes.
"""

from __future__ import annotations

import itertools
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from openai4s_backend_slurm.lab import Cluster

from .homes import Home

_PERSON = Path(__file__).with_name("person.py")


class PersonError(Exception):
    """What the person was told instead of an answer."""


class Person:
    """Use as a context manager. Every method that asks waits for the answer, within a deadline."""

    def __init__(
        self, user: Any, cluster: Cluster, profile: str, backend: str = "", ports: str = "21000-21999", **clocks: Any
    ) -> None:
        self._home = Home(user, cluster, profile, backend, ports, **clocks)
        self.events: list[dict[str, Any]] = []
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._printed: dict[int, list[str]] = {}
        self._process: subprocess.Popen[str] | None = None
        self._listener = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Person:
        self._home.__enter__()
        self._process = self._home.python(_PERSON, str(self.work))
        self._listener.start()
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(40)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._home.__exit__(*exception)

    @property
    def work(self) -> Path:
        """The folder that the notebook lies in."""
        return self._home.work

    @property
    def root(self) -> Path:
        return self._home.root

    # -- orders ------------------------------------------------------------------------------------------------------

    def ask(self, name: str, timeout_s: float = 90.0, **arguments: Any) -> Any:
        return self.answer(self.begin(name, **arguments), timeout_s)

    def begin(self, name: str, **arguments: Any) -> int:
        """Give an order; its number, for `answer`."""
        assert self._process is not None
        assert self._process.stdin is not None
        number = next(self._numbers)
        self._answers[number] = queue.Queue()
        self._process.stdin.write(json.dumps({"id": number, "do": name, **arguments}) + "\n")
        self._process.stdin.flush()
        return number

    def answer(self, number: int, timeout_s: float = 90.0) -> Any:
        try:
            found = self._answers[number].get(timeout=timeout_s)
        except queue.Empty:
            raise AssertionError(f"no answer after {timeout_s:g} s; {self.story()}") from None
        if "error" in found:
            raise PersonError(found["error"])
        return found["answer"]

    def start(self, timeout_s: float = 90.0) -> None:
        """A running kernel with a connected client."""
        self.ask("start", timeout_s)
        self.ask("connect")

    def printed(self, number: int, text: str, deadline_s: float = 60.0) -> None:
        """Wait until the code that runs under this order has printed `text`."""
        deadline = time.monotonic() + deadline_s
        while text not in "".join(self._printed.get(number, [])):
            assert time.monotonic() < deadline, f"not printed within {deadline_s:g} s: {text}; {self.story()}"
            time.sleep(0.02)

    def terminal(self, *words: str) -> subprocess.Popen[str]:
        """``jupyter openai4s`` in another window of the same person, in their folder."""
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "openai4s_provisioner.jupyter.cli", *words]
        return self._home.popen(command, cwd=self.work, stdout=pipe, stderr=pipe, text=True)

    def value(self, expression: str) -> str:
        return str(self.ask("value", expression=expression))

    # -- what was heard ------------------------------------------------------------------------------------------------

    def heard(
        self, condition: Callable[[dict[str, Any]], object], what: str, deadline_s: float = 60.0
    ) -> dict[str, Any]:
        """The first event, from the beginning, for which `condition` holds."""
        deadline = time.monotonic() + deadline_s
        while True:
            for event in list(self.events):
                if condition(event):
                    return event
            assert time.monotonic() < deadline, f"not heard within {deadline_s:g} s: {what}; {self.story()}"
            time.sleep(0.02)

    def ended(self, reason: str, deadline_s: float = 60.0) -> dict[str, Any]:
        """The event that says that the session is over, for this reason."""
        over = {"COMPLETED", "FAILED", "CANCELLED", "LOST"}
        event = self.heard(lambda event: event["phase"] in over, f"the end for {reason}", deadline_s)
        assert event["reason"] == reason, self.story()
        return event

    def complaints(self) -> list[str]:
        """The log's lines of alarm."""
        return [
            line for line in self._home.log().splitlines() if "cannot be asked" in line or "could not be asked" in line
        ]

    def story(self) -> str:
        """For a failure's text: the events, and the end of the log."""
        events = "\n".join(json.dumps(event) for event in self.events[-12:])
        return f"events:\n{events}\nlog:\n{self._home.log()[-3000:]}"

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said: Mapping[str, Any] = json.loads(line)
            if "printed" in said:
                self._printed.setdefault(said["id"], []).append(said["printed"])
            elif "event" in said:
                self.events.append(said["event"] | {"at": time.monotonic()})
            else:
                self._answers[said["id"]].put(dict(said))
