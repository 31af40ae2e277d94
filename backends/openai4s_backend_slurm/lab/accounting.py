"""Accounting of a cluster: a database of its own, slurmdbd, and the accounts that may submit.

The database listens on this machine alone, under a password that is worth nothing elsewhere.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .configuration import CLUSTER, DATABASE, DATABASE_PASSWORD, DATABASE_USER
from .daemons import Daemon
from .errors import LabError
from .programs import program
from .shape import Layout, Ports

if TYPE_CHECKING:
    from .cluster import Cluster

_SETUP = (
    f"create database if not exists {DATABASE}; "
    f"create user if not exists {DATABASE_USER}@'127.0.0.1' identified by '{DATABASE_PASSWORD}'; "
    f"grant all on {DATABASE}.* to {DATABASE_USER}@'127.0.0.1';"
)


def database_argv(layout: Layout, ports: Ports) -> list[str]:
    folder = layout.database
    return [
        program("mariadbd"),
        "--no-defaults",
        f"--datadir={folder}/data",
        f"--socket={folder}/socket",
        f"--pid-file={folder}/pid",
        "--bind-address=127.0.0.1",
        f"--port={ports.database}",
        "--innodb-buffer-pool-size=64M",
        "--innodb-log-file-size=16M",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-lock-wait-timeout=900",  # slurmdbd refuses a shorter one
        "--skip-log-bin",
        "--skip-name-resolve",
    ]


def start(cluster: Cluster, database: Daemon, accounting: Daemon) -> None:
    """Both daemons up, the cluster and its administrator known."""
    _install(cluster)
    database.start()
    cluster.wait(lambda: _sql(cluster, "select 1").returncode == 0, "the database to answer", daemon=database)
    done = _sql(cluster, _SETUP)
    if done.returncode != 0:
        raise LabError(f"the database refused its set-up: {done.stderr.strip()}")
    accounting.start()
    cluster.wait(lambda: _asks(cluster, ["list", "cluster"]), "slurmdbd to answer", daemon=accounting)
    lines = [
        f"add cluster {CLUSTER}",
        "add qos interactive priority=100 maxjobspu=2",
        f"add account research cluster={CLUSTER}",
        f"add user {cluster.administrator.name} account=research cluster={CLUSTER} defaultaccount=research "
        "qos=normal,interactive defaultqos=normal",
    ]
    done = cluster.run(["sacctmgr", "-iQ"], text_in="\n".join(lines) + "\n")
    if done.returncode != 0:
        raise LabError(f"sacctmgr refused the accounts: {(done.stderr or done.stdout).strip()}")


def _install(cluster: Cluster) -> None:
    command = [
        "mariadb-install-db",
        "--no-defaults",
        f"--datadir={cluster.layout.database}/data",
        "--skip-test-db",
        "--auth-root-authentication-method=socket",
        f"--auth-root-socket-user={cluster.database_account.name}",
    ]
    done = _as_database(cluster, command)
    if done.returncode != 0:
        raise LabError(f"mariadb-install-db failed: {done.stdout.strip()[-500:]}")


def _sql(cluster: Cluster, text: str) -> subprocess.CompletedProcess[str]:
    socket = f"--socket={cluster.layout.database}/socket"
    name = cluster.database_account.name
    return _as_database(cluster, ["mariadb", "--no-defaults", socket, f"--user={name}", "-e", text])


def _as_database(cluster: Cluster, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=cluster.daemon_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd="/",
        **cluster.database_account.popen_options(),
    )


def _asks(cluster: Cluster, argv: Sequence[str]) -> bool:
    return cluster.run(["sacctmgr", "-nP", *argv]).returncode == 0
