"""A login host of its own beside the cluster's: clients there have their credentials from a munged that only they use.

Its clock may be off (needs the program faketime), and it may fall silent while nodes and controller talk on. Nothing
else of the machine notices.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .daemons import Daemon
from .programs import program

if TYPE_CHECKING:
    from .cluster import Cluster


@dataclass(frozen=True)
class LoginHost:
    conf: Path  # what clients there name in SLURM_CONF
    munge: Daemon


@contextlib.contextmanager
def login_host(cluster: Cluster, clock_off_by: str = "") -> Iterator[LoginHost]:
    """While the context lasts. `clock_off_by`: as faketime writes it, such as ``+1h``; "" for a clock that is right."""
    folder = cluster.layout.part("munge-login")
    account = cluster.munge_account
    folder.mkdir()
    key = shutil.copy(cluster.layout.part("munge") / "key", folder / "key")
    for path in (folder, key):
        os.chown(path, account.uid, account.gid)
    os.chmod(key, 0o400)
    files = [
        f"--{name}={folder}/{end}" for name, end in (("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"))
    ]
    clock = [program("faketime"), "-f", clock_off_by] if clock_off_by else []
    argv = [*clock, program("munged"), "--foreground", f"--key-file={key}", f"--socket={folder}/socket", *files]
    output = cluster.layout.log / "munged-login.out"
    munge = Daemon("munged-login", argv, account, cluster.daemon_environment(), output)
    conf = cluster.layout.conf.with_name("login.conf")
    conf.write_text(cluster.layout.conf.read_text().replace(str(cluster.layout.munge_socket), f"{folder}/socket"))
    munge.start()
    try:
        cluster.wait((folder / "socket").exists, "munged to listen", daemon=munge)
        yield LoginHost(conf, munge)
    finally:
        munge.stop()
        shutil.rmtree(folder)
