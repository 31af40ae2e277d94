"""The crash harness at short length, and that it bites: a broken rule that only a crash can show is caught."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from checks.parts.place import REPOSITORY

BROKEN = {
    "a submission whose intent is not durable": (
        "submit",
        """
        from openai4s_provisioner.orchestration.store import sqlite
        begin = sqlite.QUERIES["begin_submit"]
        sqlite.QUERIES["begin_submit"] = begin.replace("submit_unknown_since = :now", "submit_unknown_since = NULL")

        from openai4s_provisioner.orchestration.executor import Executor

        async def no_second_net(self, workload, allocation):
            return  # what may still have landed is looked for when an attempt is cleared, and would be found there

        Executor._make_sure = no_second_net
        """,
    ),
    "a recovery in two commits": (
        "recover",
        """
        import contextlib
        from openai4s_provisioner.orchestration.store import epochs, sqlite
        open_epoch, once = epochs.open_epoch, sqlite.Database.transaction

        @contextlib.contextmanager
        def no_transaction(self):
            yield

        def in_pieces(*args):
            sqlite.Database.transaction = no_transaction
            try:
                open_epoch(*args)
            finally:
                sqlite.Database.transaction = once

        epochs.open_epoch = in_pieces
        """,
    ),
    "an adoption that forgets what ended attempts left": (
        "cancel",
        """
        from openai4s_provisioner.orchestration.store import sqlite
        sqlite.QUERIES["adopt_debris"] = "DELETE FROM debris WHERE daemon_id = :dead OR daemon_id = :daemon_id"
        """,
    ),
}


def test_a_sample_of_all_crashes_breaks_no_promise() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "checks.crash", "--quick", "--seed", "1"],
        cwd=REPOSITORY,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=110,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    assert result.stdout.splitlines()[-1].startswith("PASS crash")


@pytest.mark.parametrize("rule", BROKEN)
def test_the_harness_catches(rule: str) -> None:
    scenario, breakage = BROKEN[rule]
    code = textwrap.dedent(breakage) + textwrap.dedent(
        f"""
        import logging
        from checks.parts.crash_harness import Findings, crash_everywhere
        logging.disable(logging.CRITICAL)
        findings = Findings()
        crash_everywhere({scenario!r}, "files", findings)
        print(len(findings.violations), findings.violations[:3])
        """
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, text=True, stdout=subprocess.PIPE, timeout=100, check=True
    )
    assert int(result.stdout.split()[0]) > 0, "the broken rule went unnoticed"
