"""What one session may see, from its durable spec and its profile: the rules of the sandbox package, applied to us.

Computing it writes nothing, so admission may ask. Preparing makes the homes that a sandbox shows; that comes with an
attempt and never before.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .orchestration.models import ResourceProfile, WorkloadSpec, WorkspacePolicy
from .sandbox.home import prepare_real_home, prepare_session_home
from .sandbox.policy import sees_real_home, session_spec
from .sandbox.spec import SandboxSpec


@dataclass(frozen=True)
class SessionSandbox:
    """`jupyter_folders`: Jupyter's configuration, data and runtime folders. `workspaces`: where private ones lie.
    `masks`: what a profile's backend has hidden besides."""

    home: Path
    state_dir: Path
    exchange_dir: Path
    workspaces: Path
    jupyter_folders: tuple[str, ...]
    masks: Callable[[ResourceProfile], Sequence[str]] = lambda profile: ()

    @property
    def session_home(self) -> Path:
        """The persistent home that all of one person's sessions share."""
        return self.exchange_dir / "home"

    def __call__(self, spec: WorkloadSpec, profile: ResourceProfile) -> Mapping[str, Any]:
        """The sandbox as it goes into an attempt's file. Raises SandboxError naming a path at fault."""
        return self._spec(spec, profile).to_json()

    def prepare(self, spec: WorkloadSpec, profile: ResourceProfile) -> None:
        """Make the homes that the sandbox shows. Safe to repeat."""
        prepare_session_home(str(self.session_home))
        if sees_real_home(spec.workspace, str(self.home)):
            shell = pwd.getpwuid(os.getuid()).pw_shell
            prepare_real_home(str(self.home), shell, self._spec(spec, profile).masked)

    def _spec(self, spec: WorkloadSpec, profile: ResourceProfile) -> SandboxSpec:
        ours = [str(self.state_dir), str(self.exchange_dir)]
        if profile.workspace is not WorkspacePolicy.PRIVATE:  # it lies there itself, and sees nothing else of it
            ours.append(str(self.workspaces))
        return session_spec(
            workspace=spec.workspace,
            home=str(self.home),
            home_source=str(self.session_home),
            state_paths=ours,
            jupyter_paths=self.jupyter_folders,
            prefixes=spec.installation,
            resources=spec.resources,
            share=profile.share,
            share_read_only=profile.share_read_only,
            masked=self.masks(profile),
        )
