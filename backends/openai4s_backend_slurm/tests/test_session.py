"""Whole sessions of an ordinary user on a real cluster: the notebook's side, and what the scheduler says of it."""

from __future__ import annotations

from typing import Any

from openai4s_backend_slurm.lab import Cluster

from .people import Person

PROFILE = 'partition = "cpu"'


def states(cluster: Cluster) -> list[str]:
    """Of every job, the oldest first: the first one proved that sessions are isolated."""
    return cluster.run(["squeue", "-h", "-t", "all", "-S", "i", "-o", "%T"]).stdout.split()


def test_a_session_from_start_to_a_good_end(ordinary_user: Any, cluster: Cluster, wait_until: Any) -> None:
    with Person(ordinary_user, cluster, PROFILE) as person:
        person.start()
        assert person.value("1 + 1") == "2"
        assert person.value("__import__('os').getuid()") == str(ordinary_user.uid)
        assert states(cluster) == ["COMPLETED", "RUNNING"]
        person.ask("shut_down")
        wait_until(
            lambda: states(cluster) == ["COMPLETED", "COMPLETED"], "the job to have completed, not to be cancelled", 30
        )
