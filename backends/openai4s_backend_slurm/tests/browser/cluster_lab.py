"""JupyterLab of an ordinary user on the login host of a throw-away cluster, for a browser of this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from checks.parts.lab import Lab
from checks.parts.place import make_place
from openai4s_backend_slurm.lab import Cluster, leftovers
from openai4s_backend_slurm.lab.network import enter

from ..homes import Home

_RELAY = Path(__file__).with_name("relay.py")


class ClusterLab(Lab):
    """Use as a context manager. Its port is the same in the browser's network and on the login host."""

    def __init__(self, home: Home, user: Any, cluster: Cluster) -> None:
        super().__init__(make_place(home.root))
        home.environment["JUPYTER_TOKEN"] = self.token
        self.cluster = cluster
        self._home = home
        self._owner = (user.uid, user.gid)
        self._give_away()
        self._outside = socket.create_server(("127.0.0.1", self.port))
        self._relay: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ClusterLab:
        descriptor = self._outside.fileno()
        command = [*enter(self.cluster.layout, "login", self.cluster.administrator), sys.executable, str(_RELAY)]
        self._relay = subprocess.Popen(
            [*command, str(descriptor), str(self.port)], pass_fds=[descriptor], stdin=subprocess.PIPE
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        assert self._relay is not None
        assert self._relay.stdin is not None
        self._relay.stdin.close()
        self._relay.wait(20)
        self._outside.close()

    def popen(self, command: list[str], **options: Any) -> subprocess.Popen[Any]:
        return self._home.popen(command, **options, cwd=self.place.work)

    def write_notebook(self, path: str, profile: str) -> None:
        super().write_notebook(path, profile)
        self._give_away()

    def jobs(self) -> list[dict[str, str]]:
        """What waits or runs for this person."""
        return [job for job in self.cluster.admin.jobs() if job["name"].startswith("o4s-")]

    def step_daemons(self) -> list[psutil.Process]:
        """Those of the cluster's own processes that look after one step of a job each."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [each for each in leftovers.processes(self.cluster.layout) if each.name() == "slurmstepd"]
        return self.step_daemons()  # one ended while it was looked at

    def every_job(self) -> set[str]:
        """The numbers of all that were submitted, as far back as the controller remembers."""
        return {job["id"] for job in self.cluster.admin.jobs(are_over=True)}

    def _give_away(self) -> None:
        """What this process, which is root, wrote into the person's folders."""
        for path in self.place.root.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                if path.lstat().st_uid != self._owner[0]:
                    os.chown(path, *self._owner, follow_symlinks=False)
