"""Jobs in a partition that the site hides from its users: this account's own are seen there as anywhere else."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster

from .clocks import A_WHILE_S, CLOCKS
from .people import Person
from .session_jobs import jobs, nothing_left

pytestmark = pytest.mark.timeout(600)
SHORT: dict[str, Any] = dict(CLOCKS)
PROFILE = 'partition = "hidden"\nnodelist = "c1"\nexclusive = true'
_EXIT_CODE = """
import os, sys
from pathlib import Path
from openai4s_backend_slurm.broker import Broker
from openai4s_backend_slurm.lookup import Lookup
from openai4s_backend_slurm.parse import JobName
from openai4s_backend_slurm.places import Places
print(Lookup(Broker(20, os.environ["SLURM_CONF"]), Places(Path("/nowhere")), "").exit_code(JobName(int(sys.argv[1]))))
"""


def test_a_session_in_a_hidden_partition_is_proven_waits_is_found_and_runs(
    ordinary_user: Any, cluster: Cluster, wait_until: Any
) -> None:
    with Person(ordinary_user, cluster, PROFILE, **SHORT) as person:
        assert person.ask("prove") == ""
        cluster.count_from_here()
        important = cluster.admin.occupy("c1")
        start = person.begin("start")
        person.heard(lambda event: "waits for machines" in event["sentence"], "why it waits", A_WHILE_S)
        person.heard(lambda event: "position 1" in event["sentence"], "its place", A_WHILE_S)
        (job,) = jobs(cluster)
        token = job["name"].removeprefix("o4s-")
        assert person.ask("found", token=token).startswith(f"{job['id']}/")
        cluster.admin.cancel(important)
        person.answer(start)
        person.ask("connect")
        assert person.value("1 + 1") == "2"
        person.ask("shut_down")
        nothing_left(cluster, wait_until)
        assert [each["state"] for each in jobs(cluster)] == ["COMPLETED"]


def test_one_that_waits_there_can_be_given_up(ordinary_user: Any, cluster: Cluster, wait_until: Any) -> None:
    with Person(ordinary_user, cluster, PROFILE, **SHORT) as person:
        assert person.ask("prove") == ""
        cluster.count_from_here()
        cluster.admin.occupy("c1")
        person.begin("start")
        person.heard(lambda event: event["phase"] == "PENDING", "that it waits", A_WHILE_S)
        person.ask("give_up")
        wait_until(lambda: [each["state"] for each in jobs(cluster)] == ["CANCELLED"], "its end", A_WHILE_S)


def test_how_a_job_ended_there_can_be_asked(ordinary_user: Any, cluster: Cluster, wait_until: Any) -> None:
    environment = cluster.client_environment()
    sent = ["sbatch", "--parsable", "-p", "hidden", "--chdir=/tmp", "--output=/dev/null", "--wrap=exit 7"]
    number = ordinary_user.run(sent, env=environment).stdout.strip()
    wait_until(lambda: cluster.admin.state(number) == "FAILED", "the job to fail", A_WHILE_S)
    done = ordinary_user.run([sys.executable, "-c", _EXIT_CODE, number], env=environment)
    assert done.stdout.strip() == "Exit(code=7, signal=0)", done
