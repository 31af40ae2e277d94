"""The throw-away cluster itself: it is real, several live side by side, and it leaves nothing, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from openai4s_backend_slurm.lab import Account, Cluster, Shape, leftovers
from openai4s_backend_slurm.lab.cluster import end, layout_of
from openai4s_backend_slurm.lab.errors import LabError

from .conftest import one_user, started


def submit(cluster: Cluster, user: Any, *options: str, script: str = "sleep 600") -> str:
    """A job of the ordinary user; its id."""
    script = f"#!/bin/sh\n{script}\n"
    command = ["sbatch", "--parsable", "--export=NONE", f"--chdir={user.home}", *options]
    process = user.popen(
        command,
        env=cluster.client_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = process.communicate(script, timeout=60)
    assert process.returncode == 0, err
    return str(out.strip())


def state(cluster: Cluster, job: str) -> str:
    found = [one["state"] for one in cluster.admin.jobs(are_over=True) if one["id"] == job]
    return found[0] if found else "unknown"


def test_an_ordinary_user_s_job_gets_its_gpu(either_cluster: Cluster, ordinary_user: Any, wait_until: Any) -> None:
    cluster, said = either_cluster, ordinary_user.home / "gpu.out"
    said.unlink(missing_ok=True)
    script = 'echo "$(id -un) ${CUDA_VISIBLE_DEVICES}"'
    job = submit(cluster, ordinary_user, "-p", "gpu", "--gres=gpu:2", f"--output={said}", script=script)
    wait_until(lambda: state(cluster, job) == "COMPLETED", "the job to complete")
    assert said.read_text().split() == [ordinary_user.name, "0,1"]


def test_accounting_remembers_a_job(accounting_cluster: Cluster, ordinary_user: Any, wait_until: Any) -> None:
    job = submit(accounting_cluster, ordinary_user, "--comment=ours", script="true")
    command = ["sacct", "-nXP", "-j", job, "-o", "State"]
    wait_until(lambda: accounting_cluster.run(command).stdout.strip() == "COMPLETED", "the database to know", 20)


def test_a_hung_controller_is_ambiguous(cluster: Cluster, ordinary_user: Any, wait_until: Any) -> None:
    with cluster.controller.hung():
        command = ["sbatch", "--wrap", "sleep 60", "--job-name=late", f"--chdir={ordinary_user.home}"]
        refused = ordinary_user.run(command, env=cluster.client_environment(is_hasty=True))
        assert refused.returncode == 1
        assert "timed out" in refused.stderr
    wait_until(lambda: [job["name"] for job in cluster.admin.jobs()] == ["late"], "it to have landed all the same")


def test_what_outlives_its_node_s_daemon_is_found(cluster: Cluster, ordinary_user: Any, wait_until: Any) -> None:
    job = submit(cluster, ordinary_user, "-w", "c1")
    wait_until(lambda: "sleep" in [one.name() for one in cluster.job_processes()], "the job to run")
    cluster.nodes["c1"].kill()
    assert cluster.job_processes()
    cluster.restore()
    assert not cluster.job_processes()
    assert job not in [one["id"] for one in cluster.admin.jobs()]


def test_an_administrator_s_hand(cluster: Cluster, ordinary_user: Any, wait_until: Any) -> None:
    job = submit(cluster, ordinary_user, "-w", "c2", "--no-requeue")
    wait_until(lambda: state(cluster, job) == "RUNNING", "the job to run")
    cluster.admin.node_down("c2")
    wait_until(lambda: state(cluster, job) == "NODE_FAIL", "the job to have failed with its node")
    cluster.admin.node_resume("c2")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that any account may look into; what a test forgot of its cluster is ended."""
    made = Path(tempfile.mkdtemp(prefix="o4s-lab-", dir="/tmp"))
    made.rmdir()
    yield made
    end(made)


def test_two_clusters_side_by_side_share_nothing(cluster: Cluster, folder: Path) -> None:
    with Cluster(folder, Shape(one_user=one_user())) as other:
        assert other.admin.jobs() == []
        assert other.controller.pid != cluster.controller.pid
        assert len(leftovers.processes(other.layout)) == len(leftovers.processes(cluster.layout))
    assert not leftovers.processes(layout_of(folder))
    assert not folder.exists()
    assert cluster.answers()


def test_all_of_it_as_one_ordinary_user(folder: Path, ordinary_user: Any, wait_until: Any) -> None:
    shape = Shape(one_user=Account.named(ordinary_user.name))
    with Cluster(folder, shape) as cluster:
        assert {process.uids().real for process in leftovers.processes(cluster.layout)} == {ordinary_user.uid}
        job = submit(cluster, ordinary_user, "-p", "gpu", "--gres=gpu:1", script="true")
        wait_until(lambda: state(cluster, job) == "COMPLETED", "the job to complete")


def test_a_supervisor_that_is_left_alone_is_found_all_the_same(folder: Path, wait_until: Any) -> None:
    """Its node's daemon and its job are gone, and it has written over its own environment."""
    with Cluster(folder, Shape(one_user=one_user())) as cluster:
        cluster.run(["sbatch", "-w", "c1", "--wrap", "sleep 600", "-o", "/dev/null"])
        wait_until(lambda: leftovers.jobs(cluster.layout), "its job to run")
        supervisors = {
            parent
            for process in leftovers.jobs(cluster.layout)
            for parent in process.parents()
            if parent.name() == "slurmstepd"
        }
        assert supervisors
        cluster.nodes["c1"].kill()
        for one in supervisors:
            one.suspend()
        for process in leftovers.jobs(cluster.layout):
            process.kill()
        assert supervisors <= set(leftovers.processes(cluster.layout))
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in supervisors)


MAKER = """
import sys
from pathlib import Path
from openai4s_backend_slurm.lab import Account, Cluster, Shape
import os
cluster = Cluster(Path(sys.argv[1]), Shape(one_user=None if os.geteuid() == 0 else Account.current()))
cluster.up()
cluster.run(["sbatch", "--wrap", "sleep 600", "-o", "/dev/null"])
print("up", flush=True)
input()
"""


def test_a_killed_maker_leaves_nothing(folder: Path, wait_until: Any) -> None:
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert maker.stdin is not None
    assert maker.stdout is not None
    assert maker.stdout.readline() == "up\n"
    wait_until(lambda: leftovers.jobs(layout_of(folder)), "its job to run")
    os.kill(maker.pid, signal.SIGKILL)
    maker.communicate()
    wait_until(lambda: not leftovers.processes(layout_of(folder)), "its cluster to be ended", 20)
    wait_until(lambda: not folder.exists(), "its folder to be removed")


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(LabError, match="something else"):
        Cluster(tmp_path, Shape(one_user=one_user())).up()
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_behind_firewalls_a_job_runs_to_its_end_and_no_namespace_is_left(wait_until: Any) -> None:
    with started(Shape(network=True)) as cluster:
        names = {path.name for path in Path("/run/netns").glob(f"{cluster.layout.tag}-*")}
        assert len(names) == 6
        # A step started from the login host would wait for ever: nodes reach no port of it but two.
        job = cluster.run(["sbatch", "--parsable", "-w", "c1", "--output=/dev/null", "--wrap", "true"]).stdout.strip()
        wait_until(lambda: state(cluster, job) == "COMPLETED", "the job to complete", 30)
    assert not list(Path("/run/netns").glob(f"{cluster.layout.tag}-*"))
