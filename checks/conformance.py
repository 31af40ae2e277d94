"""ipykernel in a session passes exactly the tests of the `jupyter_kernel_test` suite that it passes without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter

from .parts.place import Place, private_place
from .parts.report import Report, run

PROVISIONERS = ("local-provisioner", "openai4s-provisioner")


def main() -> int:
    return run("conformance", _body)


def _body(report: Report) -> None:
    with private_place() as place:
        local, session = (_outcomes(report, place, name) for name in PROVISIONERS)
    report.section("compared")
    for test in sorted(local.keys() | session.keys()):
        one, two = local.get(test, "missing"), session.get(test, "missing")
        report.figure(test, one if one == two else f"{one} became {two}")
    report.expect(
        Counter(local.values())["passed"] >= 10, "the suite tests something: at least 10 tests pass without us"
    )
    report.expect(local == session, "every test ends alike under both provisioners")


def _outcomes(report: Report, place: Place, provisioner: str) -> dict[str, str]:
    """Run the suite in a process of its own."""
    report.section(f"jupyter_kernel_test with {provisioner}")
    started = time.monotonic()
    environment = {**os.environ, "JUPYTER_DEFAULT_PROVISIONER_NAME": provisioner}
    result = subprocess.run(
        [sys.executable, "-m", "checks.parts.kernel_suite"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=place.work,
        env=environment,
        timeout=600,
    )
    outcomes: dict[str, str] = json.loads(result.stdout.splitlines()[-1])
    report.figure("seconds", f"{time.monotonic() - started:.1f}")
    report.figure("outcomes", dict(Counter(outcome.partition(" ")[0] for outcome in outcomes.values())))
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
