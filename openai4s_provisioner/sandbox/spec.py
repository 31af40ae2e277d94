"""What one sandbox shows and hides, as a frozen value that travels as JSON.

An allow-list: what is not named here, and is not one of the system's own folders, does not exist inside. Nothing here
looks at a disk; whether a path exists is decided where the sandbox is made, which may be another machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

NETWORK_SHARED = "shared"
NETWORK_PRIVATE = "private"


@dataclass(frozen=True)
class SandboxSpec:
    """All paths are absolute paths of the host; they appear inside at the same place unless said otherwise."""

    workspace: str
    home: str = ""  # where $HOME is inside
    home_source: str = ""  # persistent host folder shown at `home`; "" = an empty one in memory
    read_only: tuple[str, ...] = ()  # kernel environments and shared data; what is missing on a machine is left out
    read_write: tuple[str, ...] = ()  # the same
    resources: tuple[str, ...] = ()  # read-only too, and allowed inside a masked folder (a kernelspec's own folder)
    masked: tuple[str, ...] = ()  # hidden wherever a bound path would show them; missing ones are skipped
    protected: tuple[str, ...] = ()  # read-only wherever a bound path would show them; missing ones are skipped
    overlays: tuple[tuple[str, str], ...] = ()  # (host folder, where it appears), read-write
    devices: tuple[str, ...] = ()
    network: str = NETWORK_SHARED
    shared: str = ""  # host folder shown at /run/openai4s
    private_tmp: str = ""  # host folder shown at /tmp; "" = an empty one in memory
    program: str = ""  # host file (or folder) shown read-only at PROGRAM_INSIDE
    commands: str = ""  # host folder shown read-only at COMMANDS_INSIDE
    env_marker: str = ""  # NAME=value in the environment of everything inside; never a secret

    def __post_init__(self) -> None:
        for path in self._paths():
            if path and (not os.path.isabs(path) or os.path.normpath(path) != path or "\0" in path):
                raise ValueError(f"a sandbox path must be absolute and normal: {path!r}")
        if self.network not in (NETWORK_SHARED, NETWORK_PRIVATE):
            raise ValueError(f"unknown kind of network for a sandbox: {self.network!r}")

    def _paths(self) -> list[str]:
        single = [self.workspace, self.home, self.home_source, self.shared, self.private_tmp]
        single += [self.program, self.commands]
        several = self.read_only + self.read_write + self.resources + self.masked + self.protected + self.devices
        return [*single, *several, *(path for pair in self.overlays for path in pair)]

    def with_launch(self, *, shared: str, private_tmp: str, program: str) -> SandboxSpec:
        """This spec with what is known only where, and when, a sandbox is started."""
        return replace(self, shared=shared, private_tmp=private_tmp, program=program)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SandboxSpec:
        """The spec that `to_json` gave. Unknown keys are refused: a spec that is half understood protects nothing."""
        unknown = set(data) - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"unknown keys in a sandbox spec: {', '.join(sorted(unknown))}")
        return cls(**{key: _frozen(value) for key, value in data.items()})


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, (list, tuple)) else value
