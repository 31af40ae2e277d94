"""What of the scheduler no session may reach, and the attacks that prove it: through its client a session could enter a
sibling's allocation, or end it.

Pure but for the look-up of programs on this machine's PATH; what a node does not have is passed over there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from .profiles import COMMANDS, SlurmOptions

# Where distributions and sites keep the client's configuration, keys and sockets.
_PLACES = (
    *("/etc/slurm", "/etc/slurm-llnl", "/usr/local/etc/slurm", "/opt/slurm/etc", "/run/slurm", "/run/slurmctld"),
    *("/run/slurmd", "/run/slurmdbd", "/run/slurmrestd", "/var/spool/slurm", "/var/spool/slurmd", "/var/lib/slurm"),
    *("/run/munge", "/var/run/munge", "/etc/munge", "/var/lib/munge"),
)
_FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin")
_PROGRAMS = (*COMMANDS, "salloc", "sattach", "sbcast", "scrun", "sinfo", "sacctmgr", "strigger", "munge", "unmunge")
_ASK = ("squeue", "--noheader", "--jobs=$SLURM_JOB_ID")
_SIGNAL = ("scancel", "--signal=CONT", "$SLURM_JOB_ID")
_ENTER = ("srun", "--overlap", "--jobid=$SLURM_JOB_ID", "--nodes=1", "--ntasks=1", "--export=ALL", "--mpi=none")


def masks(options: SlurmOptions) -> tuple[str, ...]:
    """Absolute and normal paths."""
    conf = options.slurm_conf or os.environ.get("SLURM_CONF", "")
    places = [*_PLACES, *options.mask, *([conf] if os.path.isabs(conf) else [])]
    places += [os.path.join(folder, name) for folder in _FOLDERS for name in _PROGRAMS]
    places += [found for name in _PROGRAMS if (found := shutil.which(options.commands.get(name, name)))]
    return tuple(dict.fromkeys(os.path.normpath(os.path.abspath(place)) for place in places))


def attacks(has_conf: bool) -> list[tuple[str, Sequence[str]]]:
    """Each must reach the scheduler when nothing confines it. ``$NAME`` and ``which:`` are filled in on the node."""
    found: list[tuple[str, Sequence[str]]] = []
    for name, (program, *words) in (
        ("ask_the_scheduler", _ASK),
        ("signal_through_the_scheduler", _SIGNAL),
        ("enter_an_allocation", (*_ENTER, "/bin/true")),
    ):
        conf = ["/usr/bin/env", "SLURM_CONF=$SLURM_CONF"] if has_conf else []
        found.append((name, (*conf, f"which:{program}", *words)))
    return found
