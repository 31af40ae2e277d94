"""What control groups really enforce: memory that ends a kernel with its reason, and devices that were not granted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from checks.parts.own_devices import add_devices, remove_devices
from openai4s_backend_slurm.lab import Cluster, Shape

from .clocks import A_WHILE_S, CLOCKS
from .conftest import started
from .people import Person
from .session_jobs import jobs

pytestmark = pytest.mark.timeout(600)
SHORT: dict[str, Any] = dict(CLOCKS)
OVER = ("COMPLETED", "FAILED", "CANCELLED", "LOST")
GREEDY = "x = []\nwhile True: x.append(bytearray(50 << 20))"


@pytest.fixture(scope="module")
def strict_cluster(run_mark: str) -> Iterator[Cluster]:
    """Memory and devices are limited by control groups, as on most real clusters."""
    with started(Shape(cgroups=True)) as cluster:
        yield cluster


def test_a_kernel_that_takes_too_much_memory_says_so_and_its_session_goes_on(
    ordinary_user: Any, strict_cluster: Cluster, wait_until: Any
) -> None:
    with Person(ordinary_user, strict_cluster, 'partition = "cpu"', **SHORT) as person:
        person.start()
        person.begin("run", code=GREEDY)
        told = person.heard(lambda event: "more memory than" in event["sentence"], "why it died", A_WHILE_S)
        assert told["reason"] in ("OUT_OF_MEMORY", "KERNEL_STATE_LOST")
        lost = person.heard(lambda event: event["reason"] == "KERNEL_STATE_LOST", "that it was started anew", A_WHILE_S)
        assert lost["sentence"].startswith("The kernel used more memory than its session may have.")
        person.ask("connect")
        assert person.value("1 + 1") == "2", "in the same job"
        assert len([job for job in jobs(strict_cluster) if job["state"] == "RUNNING"]) == 1
        assert "kernel_out_of_memory" in " ".join(person.ask("recorded"))
        person.ask("shut_down")
        wait_until(lambda: not jobs(strict_cluster, are_over=False), "no job is left", A_WHILE_S)
        over = person.heard(lambda event: event["phase"] in OVER, "the end of the session", A_WHILE_S)
        assert over["phase"] == "COMPLETED", "the kernel ran out of memory, the session did not"


def test_two_sessions_of_one_node_each_open_their_own_gpu(
    ordinary_user: Any, strict_cluster: Cluster, wait_until: Any
) -> None:
    """What is not granted cannot be opened, and is not there; numbers then begin at 0 in every job."""
    node = strict_cluster.layout.nodes[0]
    profile = f'partition = "gpu"\ngpus = 1\nnodelist = "{node}"'
    seen = "(__import__('os').environ['CUDA_VISIBLE_DEVICES'], __import__('glob').glob('/dev/nvidia[0-9]*'))"
    add_devices(strict_cluster.nodes[node].pid, {"nvidia0": 0o666, "nvidia1": 0o666})
    try:
        with Person(ordinary_user, strict_cluster, profile, **SHORT) as one:
            one.start()
            with Person(ordinary_user, strict_cluster, profile, **SHORT) as two:
                two.start()
                both = {one.value(seen), two.value(seen)}
                assert both == {"('0', ['/dev/nvidia0'])", "('0', ['/dev/nvidia1'])"}
                two.ask("shut_down")
            one.ask("shut_down")
        wait_until(lambda: not jobs(strict_cluster, are_over=False), "no job is left", A_WHILE_S)
    finally:
        remove_devices(strict_cluster.nodes[node].pid)
