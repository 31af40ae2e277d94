"""The keys that a profile may hold for this backend, typed and strict, and the options of the backend itself.

Whatever is wrong is one sentence with profile, key, value and what to do; the core adds file and line. Pure. It refuses
what would take the job out of our sight (another name, an array, a requeue), and paths that cannot be passed on.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import Any

from openai4s_provisioner.orchestration.errors import ConfigError
from openai4s_provisioner.orchestration.models import ResourceProfile

from .broker import Refused, refuse_credentials

_LONGEST_TEXT = 1000
_OPTION = re.compile(r"--[a-z][a-z0-9-]*")
# Without these a job could not be found again, or would run otherwise than the control plane believes.
_NOT_TO_SET = frozenset(
    {
        *(
            "--job-name",
            "--array",
            "--wrap",
            "--requeue",
            "--no-requeue",
            "--parsable",
        ),
        *(
            "--output",
            "--error",
            "--chdir",
            "--nodes",
            "--ntasks",
            "--ntasks-per-node",
        ),
        *(
            "--wait",
            "--dependency",
            "--hold",
            "--begin",
            "--test-only",
            "--clusters",
        ),
        *(
            "--version",
            "--help",
            "--usage",
            "--uid",
            "--gid",
            "--open-mode",
        ),
        *(
            "--input",
            "--export-file",
            "--batch",
            "--quiet",
            "--time",
        ),
    }
)
_WHOLE = frozenset({"--export"})  # which only looks like the beginning of another one
_NOT_TO_REMOVE = frozenset({"--job-name", "--nodes", "--ntasks-per-node", "--chdir", "--output"})


class MemoryStyle(enum.StrEnum):
    NODE = "node"  # --mem
    CPU = "cpu"  # --mem-per-cpu
    NONE = "none"  # not stated; the site's default counts


@dataclass(frozen=True)
class SlurmProfile:
    """One profile's keys, each with the type that its default shows."""

    partition: str = ""
    qos: str = ""
    account: str = ""
    constraint: str = ""
    gpu_type: str = ""
    gres: str = ""
    reservation: str = ""
    nodelist: str = ""
    exclude: str = ""
    exclusive: bool = False
    licenses: str = ""
    memory_style: MemoryStyle = MemoryStyle.NODE
    modules: tuple[str, ...] = ()
    prologue: str = ""
    python: str = ""
    path_map: Mapping[str, str] = field(default_factory=dict)
    sbatch_options: tuple[str, ...] = ()
    remove_options: tuple[str, ...] = ()

    def on_node(self, path: str) -> str:
        """Where a node has what this machine has at `path`: the longest mapped beginning counts."""
        for ours in sorted(self.path_map, key=len, reverse=True):
            if PurePosixPath(path).is_relative_to(ours):
                return str(PurePosixPath(self.path_map[ours]) / PurePosixPath(path).relative_to(ours))
        return path


@dataclass(frozen=True)
class SlurmOptions:
    """``[backends.slurm]``."""

    slurm_conf: str = ""
    cluster: str = ""
    deadline_s: float = 20.0
    min_interval_s: float = 1.0
    isolation_max_age_s: float = 7 * 24 * 3600.0
    mask: tuple[str, ...] = ()
    commands: Mapping[str, str] = field(default_factory=dict)


COMMANDS = ("sbatch", "squeue", "scancel", "sacct", "scontrol", "srun")


def read_profile(profile: ResourceProfile) -> SlurmProfile:
    """Raises ConfigError that names the key."""
    where = f"profile {profile.name!r}"
    read = _read(SlurmProfile, profile.backend_options, where)
    found = SlurmProfile(**read)
    _check_options(found, where)
    if found.gpu_type and not profile.gpus:
        raise _wrong(where, "gpu_type", f"= {found.gpu_type!r}, but gpus = 0. Set gpus, or remove gpu_type.")
    if found.memory_style is MemoryStyle.CPU and profile.memory_mb % profile.cpus:
        raise ConfigError(
            f"{where}: memory_style = 'cpu' divides memory_mb = {profile.memory_mb} by cpus = {profile.cpus}, which "
            "leaves a rest. Set memory_mb to a multiple of cpus.",
            "memory_style",
        )
    return found


def read_options(options: Mapping[str, Any]) -> SlurmOptions:
    """Raises ConfigError that names the key."""
    where = "[backends.slurm]"
    read = SlurmOptions(**_read(SlurmOptions, options, where))
    for name in read.commands:
        if name not in COMMANDS:
            raise _wrong(where, "commands", f"knows no {name!r}. Choose among {', '.join(COMMANDS)}.")
    if not 1 <= read.deadline_s <= 25:
        raise _wrong(where, "deadline_s", f"= {read.deadline_s:g} is out of range. Use 1 to 25 seconds.")
    if not 0 <= read.min_interval_s <= 60:
        raise _wrong(where, "min_interval_s", f"= {read.min_interval_s:g} is out of range. Use 0 to 60 seconds.")
    if read.isolation_max_age_s < 60:
        raise _wrong(where, "isolation_max_age_s", f"= {read.isolation_max_age_s:g} is too small. Use at least 60.")
    for path in read.mask:
        if not path.startswith("/"):
            raise _wrong(where, "mask", f"holds {path!r}, which is not an absolute path. Begin it with '/'.")
    if read.slurm_conf and not read.slurm_conf.startswith("/"):
        raise _wrong(where, "slurm_conf", f"= {read.slurm_conf!r} is not an absolute path. Begin it with '/'.")
    return read


def _wrong(where: str, key: str, why: str) -> ConfigError:
    return ConfigError(f"{where}: {key} {why}", key)


def _read(kind: type[Any], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    known = {each.name: each for each in fields(kind)}
    values = {}
    for key, value in given.items():
        if key not in known:
            told = f"backend 'slurm' knows no key {key!r}. Known keys: {', '.join(sorted(known))}."
            raise ConfigError(f"{where}: {told}", key)
        default = {} if known[key].default_factory is dict else known[key].default
        reader = _lines if key == "prologue" else next(reader for kind, reader in _READERS if isinstance(default, kind))
        try:
            values[key] = reader(f"{where}: {key}", value)
        except ConfigError as error:
            raise ConfigError(str(error), key) from None
    return values


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{what} = {value!r} is not text. Put it in quotes.")
    if any(not character.isprintable() for character in value) or len(value) > _LONGEST_TEXT:
        raise ConfigError(f"{what} = {value[:80]!r} is not one plain line. Remove what cannot be printed.")
    try:
        refuse_credentials([value])
    except Refused:
        raise ConfigError(
            f"{what} looks like a credential, which everybody on the cluster could read. Remove it."
        ) from None
    return value


def _lines(what: str, value: Any) -> str:
    """Shell lines, as an administrator wrote them."""
    if not isinstance(value, str):
        raise ConfigError(f"{what} = {value!r} is not text. Write it as ''' lines '''.")
    if "\0" in value:
        raise ConfigError(f"{what} holds a NUL character. Remove it.")
    for line in value.splitlines():
        _text(what, line.replace("\t", " "))
    return value


def _flag(what: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{what} = {value!r} is neither true nor false. Write one of them, without quotes.")
    return value


def _number(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{what} = {value!r} is not a number of seconds.")
    return float(value)


def _list(what: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ConfigError(f'{what} = {value!r} is not a list. Write it as ["one", "two"].')
    return tuple(_text(what, entry) for entry in value)


def _style(what: str, value: Any) -> MemoryStyle:
    if value not in list(MemoryStyle):
        raise ConfigError(f"{what} = {value!r} is not known. Choose one of {', '.join(MemoryStyle)}.")
    return MemoryStyle(value)


def _paths(what: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ConfigError(f'{what} = {value!r} is not a table. Write it as {{ "/here" = "/there" }}.')
    found = {}
    for key, path in value.items():
        for each in (key, _text(what, path)):
            if what.endswith("path_map") and (not each.startswith("/") or ".." in PurePosixPath(each).parts):
                raise ConfigError(f"{what}: {each!r} is not an absolute path. Begin it with '/'.")
        found[key] = path
    return found


_READERS: tuple[tuple[type[Any], Callable[[str, Any], Any]], ...] = (
    (MemoryStyle, _style),
    (str, _text),
    (bool, _flag),
    (float, _number),
    (tuple, _list),
    (dict, _paths),
)


def _check_options(found: SlurmProfile, where: str) -> None:
    for option in found.sbatch_options:
        name = option.partition("=")[0]
        if not _OPTION.fullmatch(name):
            raise _wrong(where, "sbatch_options", f"holds {option!r}. Write each as '--name=value' or '--name'.")
        if name in _NOT_TO_SET or (name not in _WHOLE and any(each.startswith(name) for each in _NOT_TO_SET)):
            raise _wrong(where, "sbatch_options", f"holds {name}, which this backend sets itself. Remove it.")
    for option in found.remove_options:
        if not _OPTION.fullmatch(option):
            raise _wrong(where, "remove_options", f"holds {option!r}. Write each as '--name'.")
        if option in _NOT_TO_REMOVE:
            raise _wrong(where, "remove_options", f"holds {option}, without which no job can be run. Remove it.")
    for module in found.modules:
        if not module or module.startswith("-"):
            raise _wrong(where, "modules", f"holds {module!r}, which names no module. Remove it.")
    if found.python and not found.python.startswith("/"):
        raise _wrong(where, "python", f"= {found.python!r} is not an absolute path. Begin it with '/'.")
