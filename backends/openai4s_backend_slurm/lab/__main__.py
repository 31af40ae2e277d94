"""`./dev slurm`: a cluster that stays until it is taken down, for trying things by hand."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from . import leftovers
from .accounts import Account
from .cluster import Cluster, end, layout_of
from .errors import LabError
from .programs import missing_packages
from .shape import Shape

_DEFAULT_FOLDER = Path(__file__).resolve().parent.parent.parent.parent / ".slurm"


def main() -> int:
    arguments = _arguments()
    try:
        return {"up": _up, "down": _down, "status": _status, "missing": _missing}[arguments.command](arguments)
    except LabError as error:
        print(f"./dev slurm: {error}", file=sys.stderr)
        return 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev slurm", description=__doc__)
    parser.add_argument("command", choices=("up", "down", "status", "missing"))
    parser.add_argument("--accounting", action="store_true", help="with slurmdbd and MariaDB: sacct, QOS, accounts")
    parser.add_argument("--user", action="store_true", help="all of it as one ordinary user, without root")
    parser.add_argument("--netns", action="store_true", help="a login host and firewalled nodes in network namespaces")
    parser.add_argument("--cgroups", action="store_true", help="limit memory and devices for real, by control groups")
    parser.add_argument("--clocks", action="store_true", help="for 'missing': what tests of clocks need too")
    parser.add_argument("--folder", type=Path, default=_DEFAULT_FOLDER)
    return parser.parse_args()


def _up(arguments: argparse.Namespace) -> int:
    owner = None
    if arguments.user:
        owner = Account.current() if os.geteuid() != 0 else Account.named("nobody")
    shape = Shape(arguments.accounting, owner, arguments.cgroups, arguments.netns)
    cluster = Cluster(arguments.folder, shape, is_kept=False)
    started = time.monotonic()
    cluster.up()
    print(f"a cluster of {len(cluster.layout.nodes)} nodes is up after {time.monotonic() - started:.1f} s\n")
    print(cluster.admin.command("sinfo"))
    if arguments.netns:
        print(f"commands of Slurm run in the login host: nsenter --net=/run/netns/{cluster.layout.tag}-login COMMAND")
    if owner is not None and os.geteuid() == 0:
        become = f"setpriv --reuid={owner.uid} --regid={owner.gid} --clear-groups"
        print(f"everything runs as {owner.name}; so does its client: {become} COMMAND")
    print(f"export SLURM_CONF={cluster.layout.conf}")
    return 0


def _down(arguments: argparse.Namespace) -> int:
    ended = len(leftovers.processes(layout_of(arguments.folder)))
    end(arguments.folder)
    print(f"{ended} processes ended" if ended else "nothing was running")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    layout = layout_of(arguments.folder)
    found = leftovers.processes(layout)
    jobs = {process.pid for process in leftovers.jobs(layout)}
    for process in sorted(found, key=lambda one: one.pid):
        print(f"{process.pid:>8}  {'job' if process.pid in jobs else 'daemon':6}  {process.name()}")
    print(f"export SLURM_CONF={layout.conf}" if found else "nothing is running")
    return 0 if found else 3


def _missing(arguments: argparse.Namespace) -> int:
    """For `./dev`: the packages to install, one line."""
    print(*missing_packages(accounting=arguments.accounting, network=arguments.netns, clocks=arguments.clocks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
