"""Sessions over several nodes of a real cluster: every rank counts, tasks run on all of them, a lost one is named."""

from __future__ import annotations

import ast
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from checks.parts.own_devices import add_devices, remove_devices
from openai4s_backend_slurm.lab import Cluster, node_view

from .clocks import A_WHILE_S, CLOCKS
from .people import Person
from .session_jobs import jobs, nothing_left

pytestmark = pytest.mark.timeout(600)
SHORT: dict[str, Any] = dict(CLOCKS)
PAIR = 'partition = "gpu"\nnodes = 2\ngpus = 1'
FOUR = 'partition = "all"\nnodes = 4'
RUN = (
    "import subprocess; d = subprocess.run({!r}, capture_output=True, text=True); "
    "print((d.returncode, sorted(d.stdout.splitlines()), d.stderr))"
)


def inside(person: Person, *command: str) -> tuple[int, list[str], str]:
    """A task on every rank, asked for by the kernel: its exit code, its lines sorted, what it complained."""
    words = ["openai4s", "run", "--ranks", "all", "--", *command]
    done = person.ask("run", code=RUN.format(words))
    assert done["status"] == "ok", done
    code, lines, complaint = ast.literal_eval(done["printed"])
    return code, lines, complaint


def ran(person: Person, *command: str, ranks: str = "all") -> tuple[int, list[str], str]:
    """The same from a terminal."""
    process = person.terminal("run", person.ask("kernel_id"), "--ranks", ranks, "--", *command)
    out, err = process.communicate(timeout=90)
    return process.returncode, sorted(out.splitlines()), err


def workers(cluster: Cluster) -> dict[int, psutil.Process]:
    """The worker of every rank."""
    found = {}
    for process in cluster.job_processes():
        line = process.cmdline()
        if "worker" in line and "--rank" in line and "steward.py" not in " ".join(line):
            found[int(line[line.index("--rank") + 1])] = process
    return found


def running(cluster: Cluster) -> str:
    """The one job that holds the session now."""
    (job,) = jobs(cluster, are_over=False)
    return job["id"]


def mine(cluster: Cluster) -> str:
    """The session's job, where others run as well."""
    (job,) = {job["id"] for job in jobs(cluster) if job["state"] == "RUNNING"}
    return job


def came_back(person: Person, cluster: Cluster, before: str) -> None:
    """In another job, whose kernel knows nothing of the first one; never in both."""
    person.heard(lambda event: event["reason"] == "KERNEL_STATE_LOST", "that the memory is lost", A_WHILE_S)
    assert person.value("x") == "NameError"
    assert running(cluster) != before


@pytest.fixture
def four(ordinary_user: Any, cluster: Cluster, wait_until: Any) -> Iterator[Person]:
    """A session over all four nodes."""
    with Person(ordinary_user, cluster, FOUR, **SHORT) as person:
        person.start()
        yield person
        person.ask("shut_down")
        nothing_left(cluster, wait_until)


def granted(cluster: Cluster, job: str) -> list[str]:
    """Each rank's GPU, as Slurm says it."""
    gpus = cluster.admin.gpus_of(job)
    return [gpus[node] for node in cluster.admin.hosts_of(job)]


def seen(person: Person) -> list[str]:
    """Each rank's GPU, as a program on it is told; the kernel is told the same as the first one."""
    told = "echo $OPENAI4S_RANK of $OPENAI4S_RANKS sees $CUDA_VISIBLE_DEVICES"
    code, lines, complaint = inside(person, "sh", "-c", told)
    assert (code, complaint, len(lines)) == (0, "", 2)
    assert [line.rpartition(" ")[0] for line in lines] == ["[0] 0 of 2 sees", "[1] 1 of 2 sees"]
    found = [line.rpartition(" ")[2] for line in lines]
    assert person.value("__import__('os').environ['CUDA_VISIBLE_DEVICES']") == repr(found[0])
    return found


def test_two_nodes_with_a_gpu_each(ordinary_user: Any, either_cluster: Cluster, wait_until: Any) -> None:
    cluster = either_cluster
    with Person(ordinary_user, cluster, PAIR, **SHORT) as person:
        person.start()
        last = person.heard(lambda event: event["met"] == 4, "four conditions")
        assert last["phase"] in ("GRANTED", "ACTIVE")
        assert any("of 2 connected" in event["sentence"] or event["met"] >= 2 for event in person.events)
        assert person.value("__import__('os').environ['OPENAI4S_RANKS']") == "'2'"
        first = running(cluster)
        assert seen(person) == granted(cluster, first)
        with Person(ordinary_user, cluster, PAIR, **SHORT) as another:  # on the same two nodes
            another.start()
            (second,) = {job["id"] for job in jobs(cluster) if job["state"] == "RUNNING"} - {first}
            assert seen(another) == granted(cluster, second)
            assert all(one != other for one, other in zip(seen(person), seen(another), strict=True))
            another.ask("shut_down")
        person.ask("interrupt")
        person.ask("restart")
        person.ask("connect")
        assert person.value("6 * 7") == "42"
        assert len(jobs(cluster, are_over=False)) == 1, "a restart needs no further job"
        person.ask("shut_down")
        wait_until(lambda: {job["state"] for job in jobs(cluster)} == {"COMPLETED"}, "both jobs to end well", A_WHILE_S)
        nothing_left(cluster, wait_until)


@pytest.fixture
def cards(cluster: Cluster) -> Iterator[None]:
    """The nodes with GPUs have device files for them, which Slurm has numbered alike."""
    if not node_view.is_possible():
        pytest.skip("only root can give a node device files of its own")
    pids = [cluster.nodes[node].pid for node in ("g1", "g2")]
    for pid in pids:
        add_devices(pid, {"nvidia0": 0o666, "nvidia1": 0o666, "nvidiactl": 0o666})
    yield
    for pid in pids:
        remove_devices(pid)


def test_each_node_s_own_gpu_when_they_are_not_the_same_on_both(ordinary_user: Any, cluster: Cluster) -> None:
    cluster.admin.occupy_gpu("g1")
    with Person(ordinary_user, cluster, PAIR, **SHORT) as person:
        person.start()
        assert granted(cluster, mine(cluster)) == ["1", "0"]
        assert seen(person) == ["1", "0"]


def test_each_node_s_own_device_is_the_only_one_in_its_sandbox(
    cards: None, ordinary_user: Any, cluster: Cluster
) -> None:
    """One that is alone is the first one for programs, whatever Slurm's number for it."""
    cluster.admin.occupy_gpu("g1")
    with Person(ordinary_user, cluster, PAIR, **SHORT) as person:
        person.start()
        assert granted(cluster, mine(cluster)) == ["1", "0"]
        assert seen(person) == ["0", "0"]
        look = "echo $(ls -d /dev/nvidia*)"
        expected = ["[0] /dev/nvidia1 /dev/nvidiactl", "[1] /dev/nvidia0 /dev/nvidiactl"]
        assert inside(person, "sh", "-c", look) == (0, expected, "")
        assert person.value("sorted(__import__('glob').glob('/dev/nvidia*'))") == "['/dev/nvidia1', '/dev/nvidiactl']"


def test_a_task_runs_on_four_nodes_beside_the_kernel(four: Person, cluster: Cluster) -> None:
    four.begin("run", code="import time; time.sleep(600)", timeout_s=700)
    code, lines, complaint = ran(four, "sh", "-c", "echo $OPENAI4S_RANK; exit $((OPENAI4S_RANK + 3))")
    assert (code, lines) == (6, [f"[{rank}] {rank}" for rank in range(4)]), "no line of the launcher's is among them"
    assert complaint.startswith("jupyter openai4s: The launcher said: srun: error: ")
    assert "c1: task 0: Exited with exit code 3" in complaint, "it says which one ended badly"
    pair = [four.terminal("run", four.ask("kernel_id"), "--ranks", "all", "--", "sleep", "2") for _ in range(2)]
    for process in pair:  # neither waits for the other, nor for the kernel
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == 0
    assert ran(four, "hostname", ranks="first")[0] == 0
    four.ask("interrupt")


def test_a_task_on_four_nodes_prints_while_it_runs_and_is_cancelled(
    four: Person, cluster: Cluster, wait_until: Any
) -> None:
    process = four.terminal(
        "run", four.ask("kernel_id"), "--ranks", "all", "--", "sh", "-c", "echo began; exec sleep 986"
    )
    assert process.stdout is not None
    assert {process.stdout.readline() for _ in range(4)} == {f"[{rank}] began\n" for rank in range(4)}

    def sleeping() -> list[psutil.Process]:
        return [each for each in cluster.job_processes() if each.cmdline() == ["sleep", "986"]]

    assert len(sleeping()) == 4
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    wait_until(lambda: not sleeping(), "every copy to end", A_WHILE_S)
    assert four.value("1 + 1") == "2"


def test_all_of_a_large_output_comes_through_the_launcher(four: Person, cluster: Cluster) -> None:
    code, lines, complaint = ran(four, "sh", "-c", "seq -f '%0800g' 500")
    assert (code, complaint) == (0, "")
    assert lines == sorted(f"[{rank}] {number:0800d}" for rank in range(4) for number in range(1, 501))


@pytest.mark.parametrize("how", ["by the site", "with its daemon"])
def test_one_node_of_two_that_fails_takes_the_session_along_and_it_comes_back_whole(
    ordinary_user: Any, cluster: Cluster, wait_until: Any, how: str
) -> None:
    with Person(ordinary_user, cluster, 'partition = "all"\nnodes = 2', **SHORT) as person:
        person.start()
        person.ask("run", code="x = 1")
        job = running(cluster)
        second = cluster.admin.hosts_of(job)[1]
        if how == "with its daemon":
            cluster.nodes[second].kill()
            os.kill(workers(cluster)[1].pid, signal.SIGKILL)
        cluster.admin.node_down(second)
        came_back(person, cluster, job)
        assert any("NODE_FAILED" in event["sentence"] or "WORKER_LOST" in event["sentence"] for event in person.events)
        assert sorted(workers(cluster)) == [0, 1]
        person.ask("shut_down")
        wait_until(lambda: not jobs(cluster, are_over=False), "no job is left in the queue", A_WHILE_S)


def test_one_rank_s_worker_that_is_killed_is_named(ordinary_user: Any, cluster: Cluster, wait_until: Any) -> None:
    with Person(ordinary_user, cluster, 'partition = "all"\nnodes = 4', **SHORT) as person:
        person.start()
        person.ask("run", code="x = 1")
        job, before = running(cluster), workers(cluster)
        assert sorted(before) == [0, 1, 2, 3]
        before[2].kill()
        came_back(person, cluster, job)
        assert not [each for each in before.values() if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
        assert sorted(workers(cluster)) == [0, 1, 2, 3]
        assert "worker 2 on" in json.dumps(person.ask("recorded"))
        person.ask("shut_down")
        nothing_left(cluster, wait_until)
