"""The sandbox of one launch: the session's spec, with what only the machine that starts it knows.

Pure but for looking at paths; starts nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

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


def inner_request(
    spec: SandboxSpec,
    launch: Mapping[str, Any] | None,
    workspace: Mapping[str, Any],
    rank: int,
    target: dict[str, Any],
) -> bytes:
    """What the inner reads from its pipe: the attack's target, the workspace to prove, and the kernel to start."""
    request = {
        "target": target,
        "workspace": dict(workspace),
        "rank": rank,
        "launch": None if launch is None else dict(launch),
        "home": spec.home,
        "env_marker": spec.env_marker,
    }
    return json.dumps(request).encode()
