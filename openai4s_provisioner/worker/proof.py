"""Proves the isolation of a machine by itself, without a session: the same attacks, from outside and from inside.

For a backend whose allocations run elsewhere: it has this program run there, once, before the first session. It reads
what to prove from a folder, writes the verdict beside it, and leaves nothing else behind. It holds no secret.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import replace
from typing import Any

from ..sandbox.bubblewrap import Bubblewrap
from ..sandbox.errors import SandboxError
from ..sandbox.probe import ProbeResult, prove
from ..sandbox.spec import SandboxSpec
from .exit_codes import ExitCode
from .record import write_record
from .site import Site

REQUEST, VERDICT = "proof.json", "verdict.json"
_USAGE = "usage: proof FOLDER --rank N\n"


def main(argv: list[str]) -> int:
    if len(argv) != 3:
        sys.stderr.write(_USAGE)
        return int(ExitCode.BAD_USAGE)
    folder = argv[0]
    try:
        with open(os.path.join(folder, REQUEST), encoding="utf-8") as file:
            request = json.load(file)
        result = _prove(request, folder)
        write_record(os.path.join(folder, VERDICT), _record(result))
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"the isolation could not be proven: {error}\n")
        return int(ExitCode.UNRECORDED)
    return int(ExitCode.ENDED)


def _prove(request: dict[str, Any], folder: str) -> ProbeResult:
    """`request`: the sandbox (its workspace is only a name), and further attacks with words of this machine."""
    workspace = tempfile.mkdtemp(prefix="o4s-proof-")
    try:
        here = Site.from_environ(os.environ).attempt({**request, "workspace": {"path": workspace}})
        spec = replace(SandboxSpec.from_json(here["sandbox"]), workspace=os.path.realpath(workspace))
        return prove(
            Bubblewrap(),
            spec,
            python=sys.executable,
            program=os.path.abspath(sys.argv[0]),
            folder=folder,
            extra=[(name, [_word(word) for word in words]) for name, words in request["attacks"]],
        )
    except SandboxError as error:
        return ProbeResult(False, str(error))
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def _word(word: str) -> str:
    """``$NAME`` is that variable of this program, and ``which:NAME`` where that program is."""
    if word.startswith("which:"):
        return shutil.which(word[6:]) or word[6:]
    name, dollar, variable = word.rpartition("$")
    return name + os.environ.get(variable, "") if dollar else word


def _record(result: ProbeResult) -> dict[str, Any]:
    return {
        "version": 1,
        "verified": result.verified,
        "sentence": result.sentence,
        "attacks": {name: list(both) for name, both in result.attacks.items()},
        "host": platform.node(),
    }
