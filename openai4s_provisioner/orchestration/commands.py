"""What a person asks to have run, beside kernels: whether it can be run at all. Pure checks, one sentence each.

Looks at the disk to find a program, as a shell would; runs and writes nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

from .errors import Refused
from .models import ResourceProfile
from .reasons import Reason

_LONGEST_COMMAND_BYTES = 128 * 1024

# Where the sentence for a session would tell a person to start a kernel.
_SENTENCES = {
    Reason.QUOTA_EXCEEDED: "You already run as much as is allowed at once. Wait for something to end, or stop it.",
    Reason.BOOTSTRAP_FAILED: "The allocation was granted, but the worker in it could not be started.",
    Reason.WORKER_LOST: "What ran the command ended unexpectedly. Submit it again.",
    Reason.NODE_FAILED: "The machine that ran the command failed. Submit it again.",
    Reason.OUT_OF_MEMORY: "The command used more memory than its profile allows. Choose a profile with more memory.",
    Reason.TIME_LIMIT_EXCEEDED: "The command reached its time limit and was ended. Choose a longer profile.",
    Reason.PREEMPTED: "The allocation was taken for a request with higher priority. Submit the command again.",
    Reason.USER_CANCELLED: "The command was stopped at its owner's request.",
    Reason.ADMIN_CANCELLED: "The command was stopped from outside. Ask your administrator why, or submit it again.",
    Reason.ISOLATION_UNVERIFIED: "The command could not be proven to be confined, so it was not run.",
    Reason.WORKSPACE_UNREACHABLE: "The command's machine cannot use its folder, so it was not run.",
    Reason.SERVER_GONE: "What asked for this command ended before it was sent. Submit it again.",
}


def command_sentence(reason: Reason) -> str:
    """A reason, in one sentence for a person who ran a command."""
    return _SENTENCES.get(reason, reason.sentence)


def check_command(argv: Sequence[str], env: Mapping[str, str], cwd: str, profile: ResourceProfile) -> None:
    """Raises Refused(INVALID_SPEC)."""
    if profile.nodes != 1:
        raise _invalid(
            f"A command runs on one machine, and profile {profile.name!r} asks for {profile.nodes}. "
            "Choose a profile with nodes = 1."
        )
    check_words(argv)
    if any("\0" in part for part in (*env, *env.values())):
        raise _invalid("The command's environment holds a NUL character. Remove it.")
    check_program(argv[0], env.get("PATH", os.defpath), cwd)


def check_words(argv: Sequence[str]) -> None:
    """The command line itself: there is one, and the system could take it."""
    if not argv or not argv[0]:
        raise _invalid("There is no command to run. Put it behind --, as in: -- python train.py")
    if any("\0" in part for part in argv):
        raise _invalid("The command holds a NUL character. Remove it.")
    if sum(len(os.fsencode(part)) for part in argv) > _LONGEST_COMMAND_BYTES:
        raise _invalid("The command is longer than 128 KiB. Put it into a script, and run that.")


def check_program(program: str, path: str, cwd: str) -> None:
    if "/" not in program:
        if shutil.which(program, path=path) is None:
            raise _invalid(
                f"There is no command {program!r} on the PATH. Check its name; if it exists only where it will run, "
                f"start it by a shell, as in: -- sh -c {program}"
            )
        return
    file = os.path.join(cwd, program)
    if not os.path.isfile(file):
        raise _invalid(f"There is no command {file!r}. Check its path.")
    if not os.access(file, os.X_OK):
        raise _invalid(f"The file {file!r} cannot be executed. Run: chmod +x {file}")


def _invalid(sentence: str) -> Refused:
    return Refused(Reason.INVALID_SPEC, sentence)
