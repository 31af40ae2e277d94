"""A private place for one run: home, Jupyter's, XDG and temporary folders, and the environment that names them.

Paths are short because a unix socket's path ends at 107 bytes. Nothing outside the place is written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SESSION_KERNEL = "python3-default-session"
LOCAL_KERNEL = "python3"
FOREIGN_SETTINGS = (
    "JUPYTER_PATH",
    "JUPYTER_CONFIG_PATH",
    "JUPYTER_DEFAULT_PROVISIONER_NAME",
    "JUPYTER_TOKEN",
    "OPENAI4S_CLUSTER_TOML",
    "OPENAI4S_WORKER_LISTEN",
    "OPENAI4S_WORKER_ADVERTISE",
)


@dataclass(frozen=True)
class Place:
    """Private folders below `root`, and the variables that point every program at them."""

    root: Path
    env: Mapping[str, str]

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def work(self) -> Path:
        """The folder notebooks run in."""
        return self.root / "work"

    def everything(self) -> set[str]:
        """Every path below the place, relative: what is compared before and after."""
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*")}


def make_place(root: Path) -> Place:
    """Create the folders of a place below `root`, all with mode 0700."""
    home = root / "home"
    folders = {
        "HOME": home,
        "JUPYTER_CONFIG_DIR": home / ".jupyter",
        "JUPYTER_DATA_DIR": root / "data",
        "JUPYTER_RUNTIME_DIR": root / "rt",
        "IPYTHONDIR": home / ".ipython",
        "MPLCONFIGDIR": home / ".mpl",
        "XDG_RUNTIME_DIR": root / "xdg",
        "XDG_CONFIG_HOME": home / ".config",
        "XDG_CACHE_HOME": home / ".cache",
        "XDG_DATA_HOME": home / ".local/share",
        "XDG_STATE_HOME": home / ".local/state",
        "TMPDIR": root / "tmp",
    }
    for folder in (*folders.values(), root / "work"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # What was installed into this environment must not hide what is installed into the place.
    env = {"JUPYTER_PREFER_ENV_PATH": "0", **{name: str(folder) for name, folder in folders.items()}}
    return Place(root, env)


@contextlib.contextmanager
def private_place() -> Iterator[Place]:
    """A place that this process and its children live in; removed afterwards."""
    root = Path(tempfile.mkdtemp(prefix="o4s-", dir="/tmp"))
    before = dict(os.environ)
    place = make_place(root)
    try:
        for name in FOREIGN_SETTINGS:
            os.environ.pop(name, None)
        os.environ.update(place.env)
        tempfile.tempdir = None
        yield place
    finally:
        os.environ.clear()
        os.environ.update(before)
        tempfile.tempdir = None
        shutil.rmtree(root, ignore_errors=True)


def install_session_kernel(place: Place, profile: str = "default") -> str:
    """Install a profile's kernelspec with the command a person uses. Returns what it printed."""
    command = [sys.executable, "-m", "openai4s_provisioner.jupyter.cli", "kernels", "install", "--profile", profile]
    environment = {**os.environ, **place.env}
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env=environment).stdout.strip()
