"""Every installed backend against the contract suite, found by entry point, ours exactly like a stranger's.

A backend keeps its contract test as ``tests/test_contract.py`` in its own package; one without it has shown nothing.
The example of the documentation is not installed; its test installs it.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from openai4s_provisioner.parts import BACKENDS

from .parts.report import Report, run
from .parts.suite import run_tests

EXAMPLE_TEST = "tests/integration/test_example_backend.py"


def main() -> int:
    return run("contract", _body)


def _body(report: Report) -> None:
    installed = sorted(entry_points(group=BACKENDS), key=lambda entry: entry.name)
    report.figure("installed backends", ", ".join(entry.name for entry in installed) or "none")
    report.expect(bool(installed), "a backend is installed")
    for entry in installed:
        test = _contract_test(entry)
        if report.expect(test is not None, f"backend '{entry.name}' brings its contract test"):
            run_tests(report, str(test))
    report.section("the example of docs/backends.md, and a session that runs on it")
    run_tests(report, EXAMPLE_TEST)


def _contract_test(entry: EntryPoint) -> Path | None:
    found = importlib.util.find_spec(entry.module.partition(".")[0])
    for folder in (found.submodule_search_locations or []) if found is not None else []:
        test = Path(folder) / "tests" / "test_contract.py"
        if test.is_file() and "BackendContract" in test.read_text(encoding="utf-8"):
            return test
    return None


if __name__ == "__main__":
    sys.exit(main())
