"""The commands that a session finds at the end of its PATH: ``openai4s``, a script of one line that starts the client.

It runs with the Python that runs the worker, which is shown inside as well.
"""

from __future__ import annotations

import os
import shlex
import sys

from ..sandbox.seam import PROGRAM_INSIDE


def make_commands(scratch: str, python: str = sys.executable) -> str:
    """Write them into a folder below `scratch`, and return it."""
    folder = os.path.join(scratch, "bin")
    os.mkdir(folder, 0o700)
    path = os.path.join(folder, "openai4s")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700), "w", encoding="utf-8") as script:
        script.write(f'#!/bin/sh\nexec {shlex.quote(python)} -I -S {PROGRAM_INSIDE} client "$@"\n')
    return folder
