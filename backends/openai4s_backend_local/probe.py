"""The probe of this machine: a session's sandbox, as a profile configures it, attacked from outside and from inside.

It proves the machine and the profile, with a workspace of its own. What one session's workspace would uncover is proven
again inside every allocation. It writes only into folders it makes, and leaves none behind.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jupyter_core.paths import jupyter_config_dir, jupyter_data_dir, jupyter_runtime_dir

from openai4s_provisioner.orchestration.bundle import write_worker_zipapp
from openai4s_provisioner.orchestration.models import ResourceProfile
from openai4s_provisioner.orchestration.ports import IsolationVerdict
from openai4s_provisioner.sandbox.bubblewrap import Bubblewrap, find_bubblewrap
from openai4s_provisioner.sandbox.errors import SandboxError
from openai4s_provisioner.sandbox.home import prepare_session_home
from openai4s_provisioner.sandbox.interpreter import interpreter_prefixes
from openai4s_provisioner.sandbox.policy import session_spec
from openai4s_provisioner.sandbox.probe import prove
from openai4s_provisioner.sandbox.spec import NETWORK_PRIVATE, NETWORK_SHARED, SandboxSpec

_KERNEL_SETTINGS = (
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
    "/proc/sys/kernel/yama/ptrace_scope",
    "/proc/sys/user/max_user_namespaces",
)


class SandboxProbe:
    def __init__(self, state_dir: Path, exchange_dir: Path) -> None:
        self._state_dir = state_dir
        self._exchange_dir = exchange_dir

    def configuration(self, profile: ResourceProfile, private_network: bool = False) -> str:
        """Digest of the profile's part in the sandbox, the sandbox program, the kernel with its settings, the user."""
        parts = [
            [profile.share, profile.share_read_only, profile.gpus > 0, private_network],
            [str(self._state_dir), str(self._exchange_dir), *_jupyter_folders()],
            [sys.executable, str(Path.home()), os.getuid(), os.getgroups()],
            [_bubblewrap_version(), platform.release(), platform.version()],
            [_setting(path) for path in _KERNEL_SETTINGS],
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def prove(self, profile: ResourceProfile, private_network: bool = False) -> IsolationVerdict:
        try:
            find_bubblewrap()  # before any folder is made
            with _own_folder(self._exchange_dir) as ours, tempfile.TemporaryDirectory(prefix="o4s-probe-") as workspace:
                result = prove(
                    Bubblewrap(),
                    self._spec(profile, workspace, ours, private_network),
                    python=sys.executable,
                    program=str(write_worker_zipapp(ours)),
                    folder=str(ours),
                )
        except SandboxError as error:
            return IsolationVerdict(False, str(error))
        except OSError as error:
            why = f"{error.filename or self._exchange_dir}: {error.strerror or error}"  # a full disk has no file's name
            return IsolationVerdict(
                False, f"The isolation of sessions could not be probed: {why}. Make that path usable."
            )
        stopped = {name: inside for name, (_, inside) in result.attacks.items()}
        return IsolationVerdict(result.verified, result.sentence, stopped)

    def _spec(self, profile: ResourceProfile, workspace: str, ours: Path, private_network: bool) -> SandboxSpec:
        home_source = ours / "home"
        prepare_session_home(str(home_source))
        return session_spec(
            workspace=os.path.realpath(workspace),
            home=str(Path.home()),
            home_source=str(home_source),
            state_paths=[str(self._state_dir), str(self._exchange_dir)],
            jupyter_paths=_jupyter_folders(),
            prefixes=interpreter_prefixes(),
            share=profile.share,
            share_read_only=profile.share_read_only,
            network=NETWORK_PRIVATE if private_network else NETWORK_SHARED,
        )


@contextlib.contextmanager
def _own_folder(parent: Path) -> Iterator[Path]:
    """A fresh folder below `parent`; afterwards it is gone, and so is every folder above it that was made for it."""
    missing = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="probe-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # somebody else uses it by now
            for made in missing:
                made.rmdir()


def _jupyter_folders() -> list[str]:
    return [jupyter_config_dir(), jupyter_data_dir(), jupyter_runtime_dir()]


def _bubblewrap_version() -> list[object]:
    """Where the sandbox program is and which file that is; empty when there is none."""
    try:
        path = os.path.realpath(find_bubblewrap())
        status = os.stat(path)
    except (SandboxError, OSError):
        return []
    return [path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode]


def _setting(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
