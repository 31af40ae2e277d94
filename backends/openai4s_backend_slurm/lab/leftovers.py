"""Finds and ends what a cluster runs: its daemons by a mark in their environment, its jobs by their cluster.

Job processes outlive their node's daemon, and a killed test run outlives nothing: what is found here needs no record
that could be stale. Ends nothing that does not belong to the one cluster asked for, and never this process or its
ancestors.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from .shape import Layout

MARK = "OPENAI4S_SLURM_LAB"
_CGROUPS = Path("/sys/fs/cgroup")
_PATIENCE_S = 10.0
_SUPERVISOR = "slurmstepd"


def processes(layout: Layout) -> list[psutil.Process]:
    """Every living process of this cluster, with all that descends from it, whatever its environment says now."""
    found: dict[int, psutil.Process] = {}
    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        if process.pid not in spared and process.pid not in found and _belongs(process, layout):
            for one in (process, *_descendants(process)):
                if one.pid not in spared and _lives(one):
                    found[one.pid] = one
    for pid in _in_cgroups(layout):
        if pid not in spared and pid not in found:
            with contextlib.suppress(psutil.Error):
                found[pid] = psutil.Process(pid)
    return list(found.values())


def jobs(layout: Layout) -> list[psutil.Process]:
    """The processes that jobs run, without Slurm's own."""
    return [process for process in processes(layout) if _is_of_a_job(process)]


def end_jobs(layout: Layout, patience_s: float = 5.0) -> None:
    """Give what belongs to ended jobs a while to end by itself; then SIGKILL."""
    deadline = time.monotonic() + patience_s
    while left := jobs(layout):
        for process in left if time.monotonic() > deadline else ():
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=0.05)


def cut_power(layout: Layout) -> None:
    """End every job and the supervisor that Slurm has around it, at once: none of them says or writes another word.

    Children first: a group of stopped processes whose last parent ends is told to go on, and would have last words.
    """
    of_jobs = [process for process in processes(layout) if _is_of_a_job(process) or _name(process) == "slurm_script"]
    parents = {process: _parents(process) for process in of_jobs}
    above = {parent.pid: parent for found in parents.values() for parent in found}
    supervisors = [process for process in above.values() if _name(process) == _SUPERVISOR]
    deepest_first = sorted(of_jobs, key=lambda process: len(parents[process]), reverse=True)
    for process in (*supervisors, *of_jobs):
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGSTOP)
    for process in (*deepest_first, *supervisors):
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs([*supervisors, *of_jobs], timeout=_PATIENCE_S)


def end_everything(layout: Layout, deadline_s: float = 10.0) -> None:
    """SIGKILL by pid until nothing is left; then the control groups go. Raises when something stays."""
    deadline = time.monotonic() + deadline_s
    while left := processes(layout):
        if time.monotonic() > deadline:
            raise TimeoutError(f"these processes of {layout.folder} do not end: {left}")
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=0.5)
    _remove_cgroups(layout)


def _belongs(process: psutil.Process, layout: Layout) -> bool:
    environment = _environment(process)
    return (
        environment.get(MARK) == str(layout.folder)
        or _names_a_job(environment, layout)
        or (_name(process) == _SUPERVISOR and _writes_into(process, layout.folder))
    )


def _writes_into(process: psutil.Process, folder: Path) -> bool:
    """A supervisor writes its title over its environment; what it has open, its node's log, still says whose it is."""
    with contextlib.suppress(psutil.Error):
        return any(file.path.startswith(f"{folder}/") for file in process.open_files())
    return False


def _is_of_a_job(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return MARK not in _environment(process) and not process.name().startswith("slurm")
    return False


def _parents(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return list(process.parents())
    return []


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.name()
    return ""


def _names_a_job(environment: dict[str, str], layout: Layout) -> bool:
    """A person's shell may name the cluster too; only a job has a number as well."""
    return "SLURM_JOB_ID" in environment and environment.get("SLURM_CONF", "").startswith(f"{layout.folder}/")


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _groups(layout: Layout) -> Iterator[Path]:
    """Only those with our tag in their name: other clusters of this machine make groups too."""
    yield from _CGROUPS.glob(f"*/slurm_{layout.tag}*")
    yield from _CGROUPS.glob(f"system.slice/{layout.tag}*")  # of version 2


def _in_cgroups(layout: Layout) -> list[int]:
    pids: list[int] = []
    for group in _groups(layout):
        for members in group.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                pids += map(int, members.read_text().split())
    return pids


def _remove_cgroups(layout: Layout) -> None:
    for group in list(_groups(layout)):
        for folder in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
            folder.rmdir()
        group.rmdir()
