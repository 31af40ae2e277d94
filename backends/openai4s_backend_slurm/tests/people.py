"""Persons for tests: each an ordinary user with a private home, a `cluster.toml` of its own and one session kernel.

The test stays outside, as the site's administrator; what the person's program says is collected as it comes.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from checks.parts.place import REPOSITORY, make_place
from openai4s_backend_slurm.lab import Cluster

_PERSON = Path(__file__).with_name("person.py")
PROFILE = """
default_profile = "cluster"
[control]
period_s = {period_s}
steady_period_s = {period_s}
call_deadline_s = {call_deadline_s}
settle_window_s = {settle_s}
gone_debounce_s = {settle_s}
cancel_again_s = 3
drain_s = 5
recovery_pause_s = 0.5
[limits]
server_grace_s = 30
[backends.slurm]
deadline_s = {deadline_s}
min_interval_s = 0.2
{backend}
[profiles.cluster]
backend = "slurm"
memory_mb = 400
workspace = "root"
{profile}
"""


class PersonError(Exception):
    """What the person was told instead of an answer."""


class Person:
    """Use as a context manager. Every method that asks waits for the answer, within a deadline."""

    def __init__(self, user: Any, cluster: Cluster, profile: str, backend: str = "", **clocks: float) -> None:
        self._user = user
        self._cluster = cluster
        self.root = Path(user.home) / f"p{secrets.token_hex(3)}"
        values: dict[str, Any] = {"period_s": 0.5, "call_deadline_s": 8, "settle_s": 3.0, "deadline_s": 5, **clocks}
        self._site = PROFILE.format(profile=profile, backend=backend, **values)
        self.events: list[dict[str, Any]] = []
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[str] | None = None
        self._listener = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Person:
        made = make_place(self.root)
        (self.root / "cluster.toml").write_text(self._site)
        _give(self.root, self._user)
        environment = {
            **made.env,
            "TMPDIR": "/tmp",  # as on any login host: nodes have another one
            "OPENAI4S_CLUSTER_TOML": str(self.root / "cluster.toml"),
            "OPENAI4S_WORKER_LISTEN": "127.0.0.1:21000-21999",
            "JUPYTER_PATH": f"{sys.prefix}/share/jupyter",
            "VIRTUAL_ENV": sys.prefix,
            **self._cluster.client_environment(),
        }
        environment |= {name: value for name, value in os.environ.items() if name == "OPENAI4S_FULL"}
        self._environment = environment
        with (self.root / "log").open("w") as log:
            self._process = self._user.popen(
                [sys.executable, str(_PERSON), str(made.work)],
                env=environment,
                cwd=REPOSITORY,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
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
        shutil.rmtree(self.root, ignore_errors=True)

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

    def terminal(self, *words: str) -> subprocess.Popen[str]:
        """``jupyter openai4s`` in another window of the same person, in their folder."""
        pipe = subprocess.PIPE
        process: subprocess.Popen[str] = self._user.popen(
            [sys.executable, "-m", "openai4s_provisioner.jupyter.cli", *words],
            env=self._environment,
            cwd=self.root / "work",
            stdout=pipe,
            stderr=pipe,
            text=True,
        )
        return process

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
        log = (self.root / "log").read_text(errors="replace")
        return [line for line in log.splitlines() if "cannot be asked" in line or "could not be asked" in line]

    def story(self) -> str:
        """For a failure's text: the events, and the end of the log."""
        events = "\n".join(json.dumps(event) for event in self.events[-12:])
        log = (self.root / "log").read_text(errors="replace")[-3000:]
        return f"events:\n{events}\nlog:\n{log}"

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said: Mapping[str, Any] = json.loads(line)
            if "event" in said:
                self.events.append(said["event"] | {"at": time.monotonic()})
            else:
                self._answers[said["id"]].put(dict(said))


def _give(root: Path, user: Any) -> None:
    for path in (root, *root.rglob("*")):
        os.chown(path, user.uid, user.gid, follow_symlinks=False)
