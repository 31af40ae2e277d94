"""Make this process hard to read and impossible to orphan, before it holds a secret.

Linux only, through ctypes: the standard library has no prctl.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4


def harden(parent: int) -> bool:
    """Not dumpable: no core file, no ptrace and no reading of /proc/<pid>/mem by others of the same user.

    It is inherited by a fork and undone by an exec, so the sandbox is not affected. SIGTERM when the parent ends;
    False when `parent` has ended already, so that this would never come.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    return os.getppid() == parent
