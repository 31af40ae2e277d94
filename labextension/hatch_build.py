"""The wheel's build hook: sees to it that the JupyterLab part is built when it is packed.

A source distribution brings it along. From a checkout it is built, with node from a wheel where the machine has none.
`SKIP_JUPYTER_BUILDER=1` leaves it out: then only the server's part is installed, and that is said.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))
prebuild = importlib.import_module("prebuild")
sys.path.pop(0)


class LabextensionHook(BuildHookInterface[Any]):
    """Named in pyproject.toml; hatchling makes one for each build."""

    def dependencies(self) -> list[str]:
        """What the build environment needs besides hatchling: asked before `initialize`."""
        if not self._builds():
            return []
        tools = ["jupyter-builder>=1.2,<2"]
        return tools if prebuild.machine_node() else [*tools, prebuild.NODE_WHEEL]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self._builds():
            prebuild.build()
        if not prebuild.is_built():
            self.app.display_warning("SKIP_JUPYTER_BUILDER is set: the part for JupyterLab is left out.")

    def _builds(self) -> bool:
        if os.environ.get("SKIP_JUPYTER_BUILDER") or prebuild.is_fresh():
            return False
        return not (prebuild.is_built() and (Path(self.root) / "PKG-INFO").is_file())
