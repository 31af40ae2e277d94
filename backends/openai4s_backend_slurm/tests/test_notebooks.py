"""The bundled notebook in a job says exactly what it says in an ordinary kernel: nbclient, and a Jupyter server."""

from __future__ import annotations

from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster

from .clocks import CLOCKS, FULL
from .people import Person

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
