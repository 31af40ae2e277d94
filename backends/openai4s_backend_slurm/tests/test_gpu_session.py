"""A session on a GPU, from the queue to a good end, as its person sees it and as the scheduler remembers it."""

from __future__ import annotations

from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster

from .clocks import A_WHILE_S, CLOCKS
from .people import Person
from .session_jobs import jobs, nothing_left

pytestmark = pytest.mark.timeout(600)
SHORT: dict[str, Any] = dict(CLOCKS)
PROFILE = 'partition = "gpu"\ngpus = 1\nwalltime_s = 1800'


def running(cluster: Cluster) -> str:
    (job,) = [job for job in jobs(cluster, are_over=False) if job["state"] == "RUNNING"]
    return job["id"]


def test_it_waits_its_turn_runs_and_ends_well(ordinary_user: Any, either_cluster: Cluster, wait_until: Any) -> None:
    cluster = either_cluster
    with Person(ordinary_user, cluster, PROFILE, **SHORT) as person:
        assert person.ask("prove") == "", "so that what waits below is the session itself"
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
        met = [event["met"] for event in person.events]
        assert met == sorted(met), "conditions come true in their order"
        assert (met[0], met[-1]) == (0, 4)
        assert person.value("__import__('os').environ['CUDA_VISIBLE_DEVICES']") == "'0'"
        conf = "__import__('os').path.exists(__import__('os').environ['SLURM_CONF'])"
        assert person.value(conf) == "False", "no way to the scheduler from inside"
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
