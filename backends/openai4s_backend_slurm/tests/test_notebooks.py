"""Notebooks in jobs. The bundled one says exactly what it says in an ordinary kernel: nbclient, and a Jupyter server.

And a server's kernel from its wait in the queue to its end, as JupyterLab drives it.
"""

from __future__ import annotations

from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster

from .clocks import A_WHILE_S, CLOCKS, FULL
from .people import Person
from .session_jobs import jobs, nothing_left

pytestmark = pytest.mark.timeout(900)
SHORT: dict[str, Any] = dict(CLOCKS)
PROFILE = 'partition = "gpu"\ngpus = 1'


@pytest.mark.parametrize("way", ["nbclient", "server"] if FULL else ["nbclient"])
def test_every_message_is_the_one_an_ordinary_kernel_sends(ordinary_user: Any, cluster: Cluster, way: str) -> None:
    with Person(ordinary_user, cluster, PROFILE, **SHORT) as person:
        found = person.ask("notebook", 600.0, way=way)
    assert found["differences"] == []
    assert found["messages"] > 100_000
    assert found["conditions"] in (4, None)


def test_a_jupyter_server_s_kernel_from_the_queue_to_its_end(
    ordinary_user: Any, either_cluster: Cluster, wait_until: Any
) -> None:
    cluster = either_cluster
    with Person(ordinary_user, cluster, PROFILE, **SHORT) as person:
        assert person.ask("prove") == "", "so that what waits below is the session itself"
        cluster.count_from_here()
        important = [cluster.admin.occupy(node) for node in ("g1", "g2")]
        serving = person.begin("serve")
        waits = person.heard(lambda event: "waits for machines" in event["sentence"], "why it waits", A_WHILE_S)
        assert (waits["state"], waits["met"]) == ("starting", 0)
        cluster.admin.cancel(*important)
        assert person.answer(serving, 300.0) == {
            "gpu": "0",
            "interrupted by": "KeyboardInterrupt",
            "still there": "1",
            "restarted": 200,
            "forgotten": "True 42",
            "shut down": 204,
        }
        assert person.heard(lambda event: event["state"] == "ready", "that it is ready")["met"] == 4
        wait_until(lambda: not jobs(cluster, are_over=False), "the job to end", A_WHILE_S)
        (only,) = jobs(cluster)  # a restart takes no other one
        assert only["state"] == "COMPLETED", "and not cancelled"
        nothing_left(cluster, wait_until)
