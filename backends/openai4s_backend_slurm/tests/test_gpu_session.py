"""A session on a GPU, from the queue to a good end, as its person sees it and as the scheduler remembers it."""

from __future__ import annotations

from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster

from .people import Person
from .test_faults import A_WHILE_S, CLOCKS, jobs, nothing_left

pytestmark = pytest.mark.timeout(600)
SHORT: dict[str, Any] = dict(CLOCKS)
PROFILE = 'partition = "gpu"\ngpus = 1\nwalltime_s = 1800'
CONDITIONS = ("allocation", "worker", "workspace", "kernel")


def running(cluster: Cluster) -> str:
    (job,) = [job for job in jobs(cluster, are_over=False) if job["state"] == "RUNNING"]
    return job["id"]


def test_it_waits_its_turn_runs_and_ends_well(ordinary_user: Any, either_cluster: Cluster, wait_until: Any) -> None:
    cluster = either_cluster
    with Person(ordinary_user, cluster, PROFILE, **SHORT) as person:
        person.start()  # once before, so that isolation is proven and what waits below is the session itself
        person.ask("shut_down")
        wait_until(lambda: not jobs(cluster, are_over=False), "the first one to be over", A_WHILE_S)
        important = [cluster.admin.occupy(node) for node in ("g1", "g2")]
        start = person.begin("start")
        told = person.heard(lambda event: "waiting for the allocation (" in event["sentence"], "why it waits")
        assert told["missing"] == "allocation_granted"
        person.heard(
            lambda event: "waits for machines" in event["sentence"], "that others have the machines", A_WHILE_S
        )
        cluster.admin.cancel(*important)
        person.answer(start)
        person.ask("connect")
        job = running(cluster)
        told_of = " ".join(event["sentence"] for event in person.events)
        assert all(f"waiting for the {what}" in told_of for what in CONDITIONS)
        assert person.value("__import__('os').environ['CUDA_VISIBLE_DEVICES']") == "'0'"
        assert person.value("__import__('os').environ.get('SLURM_CONF')") == "None", "no way to the scheduler"
        sleeping = person.begin("run", code="import time; print('asleep', flush=True); time.sleep(600)", timeout_s=100)
        wait_until(lambda: "asleep" in person.ask("printed"), "the cell to run", A_WHILE_S)
        person.ask("interrupt")
        assert person.answer(sleeping)["status"] == "error"
        assert person.value("1 + 1") == "2"
        person.ask("restart")
        person.ask("connect")
        assert person.value("6 * 7") == "42"
        assert running(cluster) == job, "a restart takes no other job"
        person.ask("shut_down")
        wait_until(lambda: cluster.admin.state(job) not in ("RUNNING", "COMPLETING"), "the job to end", A_WHILE_S)
        assert cluster.admin.state(job) == "COMPLETED"
        nothing_left(cluster, wait_until)
