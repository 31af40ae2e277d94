"""A login host whose clock is off: its clients' credentials are made by a munged of another time.

Nothing else of the machine notices. Needs the program faketime.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .daemons import Daemon
from .programs import program

if TYPE_CHECKING:
    from .cluster import Cluster


@contextlib.contextmanager
def clock_off(cluster: Cluster, by: str) -> Iterator[dict[str, str]]:
    """What clients need to find the cluster from such a host. `by`: as faketime writes it, such as ``+1h``."""
    folder = cluster.layout.part("munge-off")
    account = cluster.munge_account
    folder.mkdir()
    key = shutil.copy(cluster.layout.part("munge") / "key", folder / "key")
    for path in (folder, key):
        os.chown(path, account.uid, account.gid)
    os.chmod(key, 0o400)
    files = [
        f"--{name}={folder}/{end}" for name, end in (("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"))
    ]
    argv = [program("munged"), "--foreground", f"--key-file={key}", f"--socket={folder}/socket", *files]
    daemon = Daemon(
        "munged-off",
        [program("faketime"), "-f", by, *argv],
        account,
        cluster.daemon_environment(),
        cluster.layout.log / "munged-off.out",
    )
    conf = cluster.layout.conf.with_name("off.conf")
    conf.write_text(cluster.layout.conf.read_text().replace(str(cluster.layout.munge_socket), f"{folder}/socket"))
    daemon.start()
    try:
        cluster.wait((folder / "socket").exists, "munged to listen", daemon=daemon)
        yield {"SLURM_CONF": str(conf)}
    finally:
        daemon.stop()
        shutil.rmtree(folder)
