"""Memory that is really limited, by the machine's control groups: a kernel that wants too much, and a whole job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster, Shape
from openai4s_backend_slurm.lab.machine import has_unified_groups

from .clocks import CLOCKS
from .conftest import started
from .people import Person, PersonError

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        os.geteuid() != 0 or not (Path("/sys/fs/cgroup/memory").is_dir() or has_unified_groups()),
        reason="control groups need root and a machine that has them",
    ),
]
ACCOUNTING = (False, True)
GREEDY = "python3 -c 'held = bytearray(10**9)'"


@pytest.fixture(scope="module", params=ACCOUNTING, ids=["without accounting", "with accounting"])
def limiting_cluster(request: pytest.FixtureRequest, run_mark: str, ordinary_user: Any) -> Iterator[Cluster]:
    with started(Shape(cgroups=True, accounting=request.param), ordinary_user.name) as cluster:
        yield cluster


def test_a_kernel_that_wants_too_much_is_told_why_it_ended(
    limiting_cluster: Cluster, ordinary_user: Any, wait_until: Any
) -> None:
    with Person(ordinary_user, limiting_cluster, 'partition = "cpu"', **CLOCKS) as person:
        person.start()
        person.begin("run", code="held = bytearray(10**9)")
        person.heard(lambda event: "used more memory than it may have" in event["sentence"], "why the kernel ended", 60)
        person.ask("shut_down")
        wait_until(lambda: not limiting_cluster.admin.jobs(), "no job is left", 60)


def test_a_job_that_is_ended_for_want_of_memory_says_so(limiting_cluster: Cluster, ordinary_user: Any) -> None:
    trap = ordinary_user.home / "greedy"
    trap.unlink(missing_ok=True)
    prologue = f"if [ -e {trap} ]; then {GREEDY} || exit 1; fi"
    with Person(ordinary_user, limiting_cluster, f'partition = "cpu"\nprologue = """{prologue}"""', **CLOCKS) as person:
        assert person.ask("prove") == ""
        limiting_cluster.count_from_here()
        trap.touch()
        with pytest.raises(PersonError, match="used more memory than its profile allows"):
            person.ask("start")
        jobs = limiting_cluster.admin.jobs(are_over=True)
        mine = [job for job in jobs if int(job["id"]) > limiting_cluster.swept_up_to]
        assert [job["state"] for job in mine] == ["OUT_OF_MEMORY"]
