"""Whole sessions of an ordinary user on a real cluster: the notebook's side, and what the scheduler says of it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster, node_view

from .people import Person

PROFILE = 'partition = "cpu"'


def states(cluster: Cluster) -> list[str]:
    """Of every job of this test, the oldest first: the first one proved that sessions are isolated."""
    lines = cluster.run(["squeue", "-h", "-t", "all", "-S", "i", "-o", "%A %T"]).stdout.splitlines()
    return [state for number, state in map(str.split, lines) if int(number) > cluster.swept_up_to]


def test_a_session_from_start_to_a_good_end(ordinary_user: Any, cluster: Cluster, wait_until: Any) -> None:
    with Person(ordinary_user, cluster, PROFILE) as person:
        person.start()
        assert person.value("1 + 1") == "2"
        assert person.value("__import__('os').getuid()") == str(ordinary_user.uid)
        assert states(cluster)[-1] == "RUNNING"
        person.ask("shut_down")
        wait_until(lambda: set(states(cluster)) == {"COMPLETED"}, "the job to have completed, not to be cancelled", 30)


def test_the_site_s_prologue_reaches_the_kernel_and_the_scheduler_does_not(
    ordinary_user: Any, cluster: Cluster
) -> None:
    """A kernel has what modules and prologue set, and no way to the scheduler's client or its configuration."""
    prologue = "prologue = 'export LAB_LICENSE=\"27000@a b\" PATH=/opt/lab/bin:$PATH'\n"
    with Person(ordinary_user, cluster, prologue + PROFILE) as person:
        person.start()
        assert person.value("__import__('os').environ['LAB_LICENSE']") == "'27000@a b'"
        assert person.value("__import__('os').environ['PATH'].split(':')[0]") == "'/opt/lab/bin'"
        assert person.value("[n for n in __import__('os').environ if n.startswith('SLURM_JOB')]") == "[]"
        assert person.value("__import__('os').path.getsize('/usr/bin/srun')") == "0"
        assert person.value(f"__import__('os').path.exists({str(cluster.layout.conf)!r})") == "False"


def test_a_node_that_has_the_home_elsewhere(ordinary_user: Any, cluster: Cluster, wait_until: Any) -> None:
    """And nothing at the server's place: everything the session has lies below the node's name."""
    if not node_view.is_possible():
        pytest.skip("only root can give a node a view of its own")
    elsewhere = Path(tempfile.mkdtemp(prefix="o4s-node-", dir="/tmp"))
    elsewhere.chmod(0o711)
    node_view.show_at(cluster.nodes["c1"].pid, ordinary_user.home, elsewhere)
    cluster.hide("c1", ordinary_user.home)
    try:
        path_map = f'nodelist = "c1"\npath_map = {{ "{ordinary_user.home}" = "{elsewhere}" }}\n'
        with Person(ordinary_user, cluster, path_map + PROFILE) as person:
            person.start()
            assert person.value("__import__('os').getcwd()").startswith(f"'{elsewhere}/")
            assert person.ask("run", code="open('made', 'w').write('x')")["status"] == "ok"
            assert list(ordinary_user.home.glob("*/work/made"))
            person.ask("restart")
            person.ask("connect")
            assert person.value("__import__('os').getcwd()").startswith(f"'{elsewhere}/")
            person.ask("shut_down")
            wait_until(lambda: set(states(cluster)) == {"COMPLETED"}, "the job to have completed", 30)
    finally:
        node_view.show(cluster.nodes["c1"].pid, elsewhere)
        elsewhere.rmdir()


def test_a_check_that_must_queue_is_told_while_it_waits(ordinary_user: Any, cluster: Cluster) -> None:
    important = cluster.admin.occupy("c1")
    with Person(ordinary_user, cluster, 'nodelist = "c1"\nexclusive = true\n' + PROFILE) as person:
        start = person.begin("start")
        person.heard(lambda event: "isolated where they will run" in event["sentence"], "what takes so long")
        cluster.run(["scancel", important])
        person.answer(start)


def test_a_session_waits_until_a_maintenance_is_over(ordinary_user: Any, cluster: Cluster) -> None:
    with Person(ordinary_user, cluster, PROFILE) as person:
        assert person.ask("prove") == ""
        for node in ("c1", "c2"):
            cluster.admin.node_drain(node)
        start = person.begin("start")
        person.heard(lambda event: "not available now; it goes on when they are" in event["sentence"], "why it waits")
        for node in ("c1", "c2"):
            cluster.admin.node_resume(node)
        person.answer(start)
        person.ask("connect")
        assert person.value("1 + 1") == "2"
        person.ask("shut_down")
