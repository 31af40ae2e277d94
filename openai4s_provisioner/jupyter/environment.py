"""What a kernel is given from the server's side: its command, its environment, and the folders it is installed in.

Pure functions over a kernelspec, an environment and the file system's links. Credentials of the server never pass;
what a kernelspec itself sets always does, since a person put it there on purpose.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jupyter_client.kernelspec import KernelSpec

from ..sandbox.interpreter import interpreter_prefixes

_CREDENTIAL = re.compile(
    r"TOKEN|SECRET|PASSW(OR)?D|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|_AUTH|AUTH_|XAUTHORITY|COOKIE",
    re.IGNORECASE,
)
# Where things lie outside: inside, they lie elsewhere or are masked. JPY_PARENT_PID makes a kernel watch
# a process that its own pid namespace does not hold, and end itself.
_OUTSIDE_ONLY = frozenset(
    {
        "DBUS_SESSION_BUS_ADDRESS",
        "IPYTHONDIR",
        "JPY_INTERRUPT_EVENT",
        "JPY_PARENT_PID",
        "JUPYTER_CONFIG_DIR",
        "JUPYTER_DATA_DIR",
        "JUPYTER_PATH",
        "JUPYTER_RUNTIME_DIR",
        "OLDPWD",
        "PWD",
        "PYTHONEXECUTABLE",
        "SSH_AGENT_PID",
        "TEMP",
        "TMP",
        "TMPDIR",
        "XDG_RUNTIME_DIR",
    }
)
_PLACEHOLDER = re.compile(r"\{([A-Za-z0-9_]+)\}")


def carries_credential(name: str) -> bool:
    """Whether an environment variable's name says that its value is a secret."""
    return bool(_CREDENTIAL.search(name)) or name.startswith("JUPYTERHUB_")


def session_environment(inherited: Mapping[str, str], chosen: Iterable[str]) -> dict[str, str]:
    """The kernel's environment: `inherited` without credentials and outside-only names, except names in `chosen`."""
    kept = set(chosen)
    return {
        name: value
        for name, value in inherited.items()
        if name in kept or not (name in _OUTSIDE_ONLY or carries_credential(name))
    }


def kernel_argv(spec: KernelSpec, extra_arguments: Sequence[str], substitutions: Mapping[str, object]) -> list[str]:
    """The kernelspec's command, as jupyter_client formats it, with ``{connection_file}`` left for the inner."""
    argv = [*spec.argv, *extra_arguments]
    version = sys.version_info
    if argv and argv[0] in {"python", f"python{version.major}", f"python{version.major}.{version.minor}"}:
        argv[0] = sys.executable
    names: dict[str, object] = {"prefix": sys.prefix, "resource_dir": spec.resource_dir, **substitutions}
    names.pop("connection_file", None)
    return [_PLACEHOLDER.sub(lambda m: str(names.get(m.group(1), m.group())), arg) for arg in argv]


def installation_folders(argv: Sequence[str], home: Path, path: str | None = None) -> list[str]:
    """The folders that `argv`'s program, and our own Python, need to run, through links and virtual environments.

    Never the root, nor a home folder or what lies above it: a program lying there contributes only itself.
    """
    program = shutil.which(argv[0], path=path) if argv else None
    folders: dict[str, None] = {}
    for each in filter(None, (sys.executable, program)):
        for folder in interpreter_prefixes(each):
            is_too_much = home.is_relative_to(folder) or Path(folder) == Path(folder).parent
            folders[os.path.realpath(each) if is_too_much else folder] = None
    return list(folders)
