"""A private home of an ordinary user on the login host, with a `cluster.toml` of its own.

Homes come back under the same paths, because a proof of isolation holds for exactly these: what one person has proven
is there for the next, who need not wait for it.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from checks.parts.place import REPOSITORY, make_place
from openai4s_backend_slurm.lab import Cluster

SITE = """
default_profile = "cluster"
[control]
period_s = {period_s}
steady_period_s = {period_s}
call_deadline_s = {call_deadline_s}
settle_window_s = {settle_s}
gone_debounce_s = {settle_s}
cancel_again_s = 3
drain_s = 5
recovery_pause_s = 0.5
{control}
[limits]
server_grace_s = 30
{limits}
[backends.slurm]
deadline_s = {deadline_s}
min_interval_s = 0.2
{backend}
[profiles.cluster]
backend = "slurm"
memory_mb = 400
workspace = "root"
{profile}
"""


_PROOFS: dict[Path, bytes] = {}  # by home


class Home:
    """Use as a context manager: it is made, and removed with everything in it."""

    def __init__(
        self, user: Any, cluster: Cluster, profile: str, backend: str = "", ports: str = "21000-21999", **clocks: Any
    ) -> None:
        """`profile` and `backend`: lines of those tables. `clocks`: of the control plane, in seconds;
        `limits`, `control`: lines of those tables."""
        self._user = user
        self._cluster = cluster
        self._ports = ports
        self.root = _free_home(Path(user.home), cluster.layout.tag)
        values: dict[str, Any] = {
            "period_s": 0.5,
            "call_deadline_s": 8,
            "settle_s": 3.0,
            "deadline_s": 5,
            "limits": "",
            "control": "",
            **clocks,
        }
        self._site = SITE.format(profile=profile, backend=backend, **values)

    def __enter__(self) -> Home:
        made = make_place(self.root)
        self._bring_proofs()
        (self.root / "cluster.toml").write_text(self._site)
        for path in (self.root, *self.root.rglob("*")):
            os.chown(path, self._user.uid, self._user.gid, follow_symlinks=False)
        self.environment = {
            **made.env,
            "TMPDIR": "/tmp",  # as on any login host: nodes have another one
            "OPENAI4S_CLUSTER_TOML": str(self.root / "cluster.toml"),
            "OPENAI4S_WORKER_LISTEN": f"{self._cluster.login_address}:{self._ports}",
            "JUPYTER_PATH": f"{sys.prefix}/share/jupyter",
            "VIRTUAL_ENV": sys.prefix,
            **self._cluster.client_environment(),
        }
        return self

    def __exit__(self, *exception: object) -> None:
        if self._proofs.exists():
            _PROOFS[self.root] = self._proofs.read_bytes()
        shutil.rmtree(self.root, ignore_errors=True)

    @property
    def work(self) -> Path:
        """The folder that the notebook lies in."""
        return self.root / "work"

    def python(self, program: Path, *arguments: str) -> subprocess.Popen[str]:
        """A Python program of this user, on the login host; it is spoken to through pipes, and writes a log."""
        options: dict[str, Any] = {"cwd": REPOSITORY, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with (self.root / "log").open("w") as log:
            return self.popen([sys.executable, str(program), *arguments], stderr=log, **options)

    def popen(self, command: list[str], **options: Any) -> subprocess.Popen[str]:
        if not self._cluster.shape.network:
            process: subprocess.Popen[str] = self._user.popen(command, env=self.environment, **options)
            return process
        account = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "USER": self._user.name}
        account |= {name: value for name, value in os.environ.items() if name.startswith("OPENAI4S_TEST")}
        command = [*self._cluster.on_login_host(self._user), *command]
        return subprocess.Popen(command, env={**account, **self.environment}, **options)

    def log(self) -> str:
        return (self.root / "log").read_text(errors="replace")

    @property
    def _proofs(self) -> Path:
        """Where the backend keeps what it has proven."""
        return self.root / "home/.local/state/openai4s/slurm/isolation"

    def _bring_proofs(self) -> None:
        if self.root in _PROOFS:
            self._proofs.parent.mkdir(parents=True, mode=0o700)
            self._proofs.write_bytes(_PROOFS[self.root])
            self._proofs.chmod(0o600)
            for folder in list(self._proofs.parents)[:3]:
                folder.chmod(0o700)


def _free_home(base: Path, tag: str) -> Path:
    return next(home for number in itertools.count() if not (home := base / f"p{tag}-{number}").exists())
