"""The values that cross the control plane's door: what a caller asks for, and what it hears back. Nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .orchestration.choice import ResourceChoice
from .orchestration.models import KernelLaunch, Phase
from .orchestration.readiness import Readiness
from .orchestration.reasons import Reason
from .orchestration.reclaimer import LeaseNotice
from .orchestration.walltime import WalltimeNotice


@dataclass(frozen=True)
class AppSettings:
    """Everything a control plane is made from. Two equal values share one control plane in a process."""

    state_dir: Path
    exchange_dir: Path
    workspaces_dir: Path
    cluster_toml: Path | None
    config_path: tuple[Path, ...]
    jupyter_folders: tuple[str, ...]
    worker_listen: str = ""  # "" = no port
    worker_advertise: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelRequest:
    """One start of one kernel, as Jupyter's side knows it. The launch's id is given by the control plane."""

    kernel_id: str
    profile: str  # "" = the site's default
    root: Path  # the server's root folder, or the caller's working folder
    cwd: Path
    notebook_path: str
    installation: tuple[str, ...]  # folders the kernel's program is installed in
    resources: tuple[str, ...]  # the kernelspec's own folder
    launch: KernelLaunch
    choice: ResourceChoice = field(default_factory=ResourceChoice)  # of what the profile lets a person choose
    state_was_lost: bool = False  # it follows a death that nobody asked for


@dataclass(frozen=True)
class KernelState:
    """What `poll` reads. `final` means that no restart can bring it back: the session itself is over."""

    alive: bool
    exit_status: int = 0
    final: bool = False


@dataclass(frozen=True)
class SessionChange:
    """One change of one session, for a person."""

    workload_id: str
    kernel_id: str
    phase: Phase
    readiness: Readiness
    sentence: str
    reason: Reason | None
    elapsed_s: float  # since the session was asked for
    recovered: bool = False  # its allocation was lost, and its kernel has come back in another one

    def as_event(self) -> dict[str, Any]:
        """As the event schema ``session/v1`` has it."""
        missing = self.readiness.missing
        return {
            "workload_id": self.workload_id,
            "kernel_id": self.kernel_id,
            "phase": str(self.phase),
            "met": self.readiness.met,
            "missing": None if missing is None else str(missing),
            "sentence": self.sentence,
            "reason": None if self.reason is None else str(self.reason),
            "elapsed_s": round(self.elapsed_s, 3),
        }


Notice = LeaseNotice | WalltimeNotice
Announce = Callable[[SessionChange | Notice], None]
