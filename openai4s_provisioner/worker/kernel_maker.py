"""Makes a worker's kernels: what they have in common, and what need not be proven twice in one allocation.

Which accelerators they see, and under which numbers, is the allocation's word, never that of the server's environment.
It starts nothing itself.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Callable

from ..sandbox.bubblewrap import Bubblewrap
from ..sandbox.devices import VISIBILITY, granted
from ..sandbox.errors import SandboxUnavailable
from ..sandbox.seam import NoSandbox, Sandbox
from ..sandbox.spec import SandboxSpec
from ..transport.loop import Loop
from .confined import ConfinedKernel
from .inner import is_tcp_only
from .output import Output
from .site import Site

_log = logging.getLogger(__name__)


def usable_sandbox() -> Sandbox:
    """Bubblewrap, or, where it is missing, what refuses every kernel with the remedy."""
    try:
        return Bubblewrap()
    except SandboxUnavailable as error:
        return NoSandbox(str(error))


class KernelMaker:
    """Called once per launch. The workspace is proven with the first kernel; a restart stays in the same folder."""

    def __init__(
        self,
        loop: Loop,
        *,
        spec: SandboxSpec,
        workspace: Mapping[str, Any],
        rank: int,
        scratch: str,
        program: str,
        ranks: int = 1,
        gpus: int = 0,
    ) -> None:
        """`gpus`: how many the profile asks for on this machine; which ones were granted is found out here."""
        self._loop = loop
        self._sandbox = usable_sandbox()
        grant = granted(os.environ, gpus)
        self._spec = replace(spec, devices=(*spec.devices, *grant.devices))
        self._visible = grant.environment
        self._site = Site.from_environ(os.environ)
        self._workspace = dict(workspace)
        self._rank = rank
        self._scratch = scratch
        self._program = program
        self._facts = {"OPENAI4S_RANK": str(rank), "OPENAI4S_RANKS": str(ranks)}

    def __call__(
        self,
        launch: Mapping[str, Any] | None,
        on_event: Callable[[dict[str, Any]], None],
        output: Output | None = None,
    ) -> ConfinedKernel:
        def heard(event: dict[str, Any]) -> None:
            if event["type"] == "workspace" and event["ok"]:
                self._workspace["nonce_name"] = ""
            on_event(event)

        if is_tcp_only(launch):
            _log.info("this kernel can only do TCP: it gets a network of its own and cannot reach anything outside")
        return ConfinedKernel(
            self._loop,
            sandbox=self._sandbox,
            spec=self._spec,
            launch=None if launch is None else self._settled(launch),
            workspace=dict(self._workspace),
            rank=self._rank,
            scratch=self._scratch,
            program=self._program,
            on_event=heard,
            output=output,
        )

    def _settled(self, launch: Mapping[str, Any]) -> dict[str, Any]:
        here = self._site.launch(launch)
        return {**here, "env": self._environment(here["env"])}

    def _environment(self, asked: Mapping[str, str]) -> dict[str, str]:
        """What was asked for, with what is true in this allocation on this machine."""
        kept = {name: value for name, value in asked.items() if name not in VISIBILITY}
        return {**kept, **self._visible, **self._facts}
