"""One submission as a frozen value: the options, and the script that runs on the first node. Pure.

Options travel as an argument list, so nothing in the environment can override them and nothing in them reaches a shell.
In the script every word is quoted; only an administrator's own prologue stands there as it is.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openai4s_provisioner.orchestration.models import ResourceProfile
from openai4s_provisioner.worker.site import PATH_MAP

from .profiles import MemoryStyle, SlurmProfile
from .steps import worker_step

SCRIPT, STEWARD, LOG, RECORD, STARTED = "job.sh", "steward.py", "job.log", "job.exit", "job.started"
BEFORE = "job.env"
COMMENT = "openai4s"
_NAME = "o4s-"
_TOKEN = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True)
class Job:
    """What is to be run, with the paths that a node has."""

    token: str
    profile: ResourceProfile
    site: SlurmProfile
    folder: str  # the attempt's, as a node sees it
    python: str
    program: tuple[str, ...]  # without interpreter and rank
    script: str  # as this machine sees it


def is_token(text: str) -> bool:
    return _TOKEN.fullmatch(text) is not None


def job_name(token: str) -> str:
    """How a job is found again by its token. Begins with a letter, as some sites demand."""
    return _NAME + token


def options(job: Job) -> tuple[str, ...]:
    """Everything that the scheduler is asked for, in a fixed order."""
    wanted = [*_identity(job), *_place(job.site), *_resources(job)]
    replaced = {option.partition("=")[0] for option in job.site.sbatch_options} | set(job.site.remove_options)
    kept = [option for option in wanted if option.partition("=")[0] not in replaced]
    return (*kept, *job.site.sbatch_options)


def submission(job: Job, parsable: bool = True) -> list[str]:
    plain = "--parsable" in job.site.remove_options or not parsable
    return ["sbatch", *([] if plain else ["--parsable"]), *options(job), job.script]


def _identity(job: Job) -> list[str]:
    return [
        f"--job-name={job_name(job.token)}",
        f"--comment={COMMENT}:{job.token}",
        "--no-requeue",
        "--open-mode=append",
        f"--chdir={job.folder}",
        f"--output={LOG if _is_plain(job.folder) else '/dev/null'}",  # below the folder above
        "--input=/dev/null",
    ]


def _is_plain(folder: str) -> bool:
    """Patterns are replaced in the whole path of an output file, and how to escape them differs between versions."""
    return "%" not in folder and "\\" not in folder


def _place(site: SlurmProfile) -> list[str]:
    named = ("partition", "qos", "account", "constraint", "reservation", "nodelist", "exclude", "licenses")
    placed = [f"--{name}={getattr(site, name)}" for name in named if getattr(site, name)]
    return [*placed, *(["--exclusive"] if site.exclusive else [])]


def _resources(job: Job) -> list[str]:
    profile, site = job.profile, job.site
    asked = [f"--nodes={profile.nodes}", "--ntasks-per-node=1", f"--cpus-per-task={profile.cpus}"]
    if profile.memory_mb and site.memory_style is MemoryStyle.NODE:
        asked.append(f"--mem={profile.memory_mb}M")
    elif profile.memory_mb and site.memory_style is MemoryStyle.CPU:
        asked.append(f"--mem-per-cpu={profile.memory_mb // profile.cpus}M")
    kind = f"gpu:{site.gpu_type}" if site.gpu_type else "gpu"
    devices = [*([f"{kind}:{profile.gpus}"] if profile.gpus else []), *([site.gres] if site.gres else [])]
    if devices:
        asked.append(f"--gres={','.join(devices)}")
    if profile.walltime_s:
        asked.append(f"--time={_duration(profile.walltime_s)}")
    return asked


def _duration(seconds: int) -> str:
    """HH:MM:SS, hours without bound."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def script(job: Job) -> str:
    """The batch script. It writes down that it began and how it ended, whatever happens in between."""
    lines = [
        "#!/bin/bash",
        "# One allocation of openai4s_provisioner. Its options came on the command line.",
        f"folder={shlex.quote(job.folder)}",
        *([] if _is_plain(job.folder) else [f'exec >>"$folder/{LOG}" 2>&1']),
        "unset SLURM_EXPORT_ENV  # else a step would find no PATH",
        "ended() {",
        f'    printf \'%s %s\\n\' "$1" "${{SLURM_JOB_ID:-}}" >"$folder/{RECORD}.part"',
        f'    mv -f -- "$folder/{RECORD}.part" "$folder/{RECORD}"',
        "}",
        "trap 'ended \"$?\"' EXIT",
        "trap 'asked=1' TERM INT",
        f'printf \'%s %s\\n\' "${{SLURM_JOB_ID:-}}" "${{SLURM_RESTART_COUNT:-0}}" >>"$folder/{STARTED}"',
        'if [ "${SLURM_RESTART_COUNT:-0}" != 0 ]; then',
        "    echo 'This job was put back into the queue. Its kernel cannot follow, so it ends.' >&2",
        "    exit 1",
        "fi",
        *_path_map(job.site.path_map),
        *_environment_before(job.site),
        *_modules(job.site.modules),
        *_prologue(job.site.prologue),
        'cd -- "$folder" || exit 1',
        'if [ -n "${asked:-}" ]; then exit 143; fi',
        _command(job),
        "exit",
    ]
    return "\n".join(lines) + "\n"


def _path_map(path_map: Mapping[str, str]) -> list[str]:
    """For the worker, which has the server's paths in its file."""
    return [f"export {PATH_MAP}={shlex.quote(json.dumps(sorted(path_map.items())))}"] if path_map else []


def _environment_before(site: SlurmProfile) -> list[str]:
    """What the modules and the prologue then change is what the kernel gets as well."""
    if not site.modules and not site.prologue.strip():
        return []
    return [f'env -0 >"$folder/{BEFORE}"', f'export OPENAI4S_ENVIRONMENT_BEFORE="$folder/{BEFORE}"']


def _modules(modules: Sequence[str]) -> list[str]:
    if not modules:
        return []
    names = " ".join(map(shlex.quote, modules))
    return [
        "type module >/dev/null 2>&1 || . /etc/profile",
        f"module load {names} || {{ echo 'The modules of this profile cannot be loaded.' >&2; exit 1; }}",
    ]


def _prologue(prologue: str) -> list[str]:
    return ["# The profile's own prologue:", *prologue.splitlines(), "# Its end."] if prologue.strip() else []


def _command(job: Job) -> str:
    """One worker for each node; on a single one without a step, which needs nothing of the controller."""
    words = [job.python, "-I", "-S", STEWARD, job.python, "-I", *job.program]
    if job.profile.nodes > 1:
        words = [*worker_step(job.profile.nodes), *words]
    return shlex.join(words)
