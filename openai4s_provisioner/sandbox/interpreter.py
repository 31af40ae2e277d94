"""Which folders a Python needs to start, found from its path alone: a virtual environment may lead through several."""

from __future__ import annotations

import glob
import os
import sys


def interpreter_prefixes(executable: str = sys.executable) -> tuple[str, ...]:
    """The environment of `executable`, that of the Python it was made from, and so on: folders to show read-only.

    Works by reading symlinks and `pyvenv.cfg`; nothing is run. A program that is no Python gives its own folder.
    """
    found: dict[str, None] = {}
    waiting, seen = [os.path.abspath(executable)], set()
    while waiting:
        program = waiting.pop()
        if program in seen:
            continue
        seen.add(program)
        folder = _prefix(program)
        found.setdefault(folder)
        found.setdefault(os.path.realpath(folder))
        if os.path.islink(program):
            waiting.append(os.path.normpath(os.path.join(os.path.dirname(program), os.readlink(program))))
        base = _base_of_venv(folder)
        if base:
            waiting.append(os.path.join(base, os.path.basename(os.path.realpath(program))))
    return tuple(found)


def _prefix(program: str) -> str:
    """The environment whose `bin` holds `program`; only that folder when it does not look like one."""
    folder = os.path.dirname(program)
    above = os.path.dirname(folder)
    is_environment = (
        os.path.exists(os.path.join(above, "pyvenv.cfg"))
        or os.path.isdir(os.path.join(above, "conda-meta"))
        or glob.glob(os.path.join(glob.escape(above), "lib*", "python3*"))
    )
    return above if is_environment else folder


def _base_of_venv(folder: str) -> str:
    try:
        with open(os.path.join(folder, "pyvenv.cfg"), encoding="utf-8") as lines:
            for line in lines:
                name, _, value = line.partition("=")
                if name.strip().lower() == "home":
                    return value.strip()
    except OSError:
        pass
    return ""
