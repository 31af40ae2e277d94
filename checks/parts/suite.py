"""Runs test files at full length and reports what pytest counted, test by test when one did not pass."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from .place import REPOSITORY, private_place
from .report import Report

FULL_LENGTH = "OPENAI4S_FULL"


def run_tests(report: Report, *files: str) -> None:
    """Every test of `files` must pass; one that is skipped was not checked, and counts as not met."""
    with private_place() as place:
        record = place.root / "tests.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--no-header",
            "-p",
            "no:cacheprovider",
            f"--junit-xml={record}",
        ]
        environment = {**os.environ, FULL_LENGTH: "1"}
        subprocess.run([*command, *files], cwd=REPOSITORY, env=environment, stdin=subprocess.DEVNULL, check=False)
        _report(report, record)


def _report(report: Report, record: Path) -> None:
    if not record.is_file():
        report.expect(False, "pytest ran and wrote its record")
        return
    cases = list(ElementTree.parse(record).getroot().iter("testcase"))
    report.section("test by test")
    for case in cases:
        outcome = next((child for child in case if child.tag in {"failure", "error", "skipped"}), None)
        name = f"{case.get('name', '')} ({float(case.get('time', 0)):.1f} s)"
        report.expect(
            outcome is None, name if outcome is None else f"{name}: {outcome.tag}, {outcome.get('message', '')[:200]}"
        )
        for measured in case.iter("property"):
            report.figure(measured.get("name", ""), measured.get("value"))
    if not cases:
        report.expect(False, "there are tests to run")
