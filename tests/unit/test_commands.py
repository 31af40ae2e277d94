"""A command that cannot be run is refused before anything is written, in one sentence that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.commands import check_command
from openai4s_provisioner.orchestration.errors import Refused
from openai4s_provisioner.orchestration.models import ResourceProfile

ENV = {"PATH": "/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("argv", "env", "nodes", "says"),
    [
        ([], ENV, 1, "There is no command to run"),
        ([""], ENV, 1, "There is no command to run"),
        (["no-such-program"], ENV, 1, "no command 'no-such-program' on the PATH"),
        (["./absent"], ENV, 1, "Check its path"),
        (["./plain"], ENV, 1, "chmod [+]x"),
        (["sh", "a\0b"], ENV, 1, "NUL"),
        (["sh"], {**ENV, "A": "\0"}, 1, "NUL"),
        (["sh", "x" * 200_000], ENV, 1, "longer than 128 KiB"),
        (["sh"], ENV, 2, "nodes = 1"),
    ],
)
def test_refused(argv: list[str], env: dict[str, str], nodes: int, says: str, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    with pytest.raises(Refused, match=says):
        check_command(argv, env, str(tmp_path), ResourceProfile("p", "b", nodes=nodes))


def test_taken(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("#!/bin/sh\n")
    (tmp_path / "run").chmod(0o755)
    for argv in (["sh", "-c", "true"], ["./run"], ["/bin/sh"]):
        check_command(argv, ENV, str(tmp_path), ResourceProfile("p", "b"))
