"""A check's output: figures while it runs, and one honest verdict as its last line.

A check that raised, expected nothing, or was interrupted is a failed one.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable


class Report:
    """Collects expectations; `verdict` prints the last line and is the exit status."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._started = time.monotonic()
        self._passed = 0
        self._failed: list[str] = []

    def say(self, text: str = "") -> None:
        print(text, flush=True)

    def section(self, title: str) -> None:
        self.say(f"\n{title}")

    def figure(self, what: str, value: object) -> None:
        self.say(f"  {what}: {value}")

    def expect(self, ok: bool, what: str) -> bool:
        """Record one expectation. `what` reads as a statement that is either true or not."""
        self.say(f"  {'ok  ' if ok else 'NOT '} {what}")
        if ok:
            self._passed += 1
        else:
            self._failed.append(what)
        return ok

    def verdict(self) -> int:
        took = f"{time.monotonic() - self._started:.0f} s"
        if self._failed:
            of_all = f"{len(self._failed)} of {self._passed + len(self._failed)}"
            self.say(f"FAIL {self.name}: {of_all} not met, {took}: {self._failed[0]}")
            return 1
        if not self._passed:
            self.say(f"FAIL {self.name}: nothing was checked, {took}")
            return 1
        self.say(f"PASS {self.name}: {self._passed} of {self._passed} met, {took}")
        return 0


def run(name: str, body: Callable[[Report], None]) -> int:
    """Run a check's body. Whatever it raises is printed and makes it fail."""
    report = Report(name)
    try:
        body(report)
    except KeyboardInterrupt:
        report.expect(False, "the check was not interrupted")
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        report.expect(False, f"the check ran to its end ({type(error).__name__}: {error})")
    return report.verdict()
