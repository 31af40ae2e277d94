"""The words that start a step over every node of a held allocation: for the workers themselves, and for tasks. Pure.

A task's step shares everything with the one that holds the kernel, so it begins at once and never waits for its turn.
It is started on the first node, where the worker is: a step's client must be reachable from the nodes, which a login
host need not be.
"""

from __future__ import annotations

# What the step that holds the kernel was given, and another one would take for its own wish.
_OF_THE_OTHER_STEP = (
    *("SLURM_CPU_BIND", "SLURM_CPU_BIND_LIST", "SLURM_CPU_BIND_TYPE", "SLURM_CPU_BIND_VERBOSE"),
    *("SLURM_CPUS_PER_TASK", "SLURM_EXACT", "SLURM_EXPORT_ENV", "SLURM_LABELIO", "SLURM_UNBUFFEREDIO"),
)
_RANK = 'exec "$@" --rank "$SLURM_PROCID"'


def worker_step(nodes: int) -> tuple[str, ...]:
    """One worker on each node. One that ends badly ends the others, so that nothing is left half alive."""
    return (*_every_node(nodes), "--kill-on-bad-exit=1")


def task_step(nodes: int) -> tuple[str, ...]:
    """One copy of a task on each node, each with its rank as its last words. Every copy ends by itself."""
    clean = ("env", *(word for name in _OF_THE_OTHER_STEP for word in ("-u", name)))
    return (*clean, *_every_node(nodes), "--overlap", "--kill-on-bad-exit=0", "sh", "-c", _RANK, "sh")


def _every_node(nodes: int) -> tuple[str, ...]:
    return (
        "srun",
        "--export=ALL",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--distribution=block",
        "--wait=0",
        "--mpi=none",
        "--quiet",
    )
