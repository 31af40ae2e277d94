"""The sandbox of one launch: the session's spec, with what only the machine that starts it knows.

Pure but for looking at paths; starts nothing.
"""

from __future__ import annotations

import os
from dataclasses import replace

from ..sandbox.host import is_within
from ..sandbox.interpreter import interpreter_prefixes
from ..sandbox.spec import SandboxSpec


def spec_for_launch(spec: SandboxSpec, folder: str, scratch: str, program: str, python: str) -> SandboxSpec:
    """The spec with what only this machine knows, siblings' folders hidden should a shared folder contain them."""
    siblings = os.path.dirname(os.path.realpath(scratch))
    bound = (spec.workspace, *spec.read_write, *spec.read_only)
    shown = any(is_within(siblings, os.path.realpath(path)) for path in bound)
    return replace(
        spec.with_launch(shared=folder, private_tmp=os.path.join(scratch, "tmp"), program=program),
        read_only=(*spec.read_only, *interpreter_prefixes(python)),
        masked=(*spec.masked, siblings) if shown else spec.masked,
    )
