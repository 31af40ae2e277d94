"""``jupyter openai4s keep``: renew the idle clock of a kernel from outside of JupyterLab, in a process of its own.

It writes into the state that the owning server reads, with the same compare-and-set as everything else, so a keep
that comes too late is refused. Where there is no state yet it makes none.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import time
from typing import Any

from ..orchestration.errors import Refused
from ..orchestration.reasons import Reason
from ..orchestration.store import Store, leases, tasks
from ..orchestration.store.sqlite import FILE_NAME
from .cli_settings import add_settings, settings_of

ALL = "all"


def add_commands(commands: Any) -> None:
    keep = commands.add_parser("keep", help="keep an idle session: its idle time begins anew")
    keep.add_argument("kernel", metavar="KERNEL|all", help="the kernel's id or its beginning, or its notebook")
    add_settings(keep)
    keep.set_defaults(run=_keep)


def _keep(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    if not (settings.state_dir / FILE_NAME).exists():
        raise Refused(Reason.INVALID_SPEC, f"There is no session to keep: {settings.state_dir} holds no state.")
    with contextlib.closing(Store(settings.state_dir)) as store:
        if arguments.kernel == ALL:
            kernels = leases.held_kernels(store)
        else:
            kernels = [tasks.kernel_named(store, arguments.kernel).kernel_id]
        if not kernels:
            print("There is no session to keep.")
        for kernel_id in kernels:
            kept = leases.keep(store, kernel_id, getpass.getuser(), time.time())
            print(f"{kept.kernel_id}\t{kept.sentence}")
    return 0
