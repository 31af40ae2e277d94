"""A login host whose clock is off: its credentials are refused without a word, and the person hears what that means."""

from __future__ import annotations

from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster, missing_packages
from openai4s_backend_slurm.lab.clock import clock_off

from .people import Person

pytestmark = pytest.mark.skipif(bool(missing_packages(clocks=True)), reason="needs the program faketime")


@pytest.mark.parametrize("by", ["+1h", "-1h"])
def test_a_clock_that_is_off_is_said_and_leaves_no_job(cluster: Cluster, ordinary_user: Any, by: str) -> None:
    with clock_off(cluster, by) as environment:
        conf = f'slurm_conf = "{environment["SLURM_CONF"]}"'
        with Person(ordinary_user, cluster, 'partition = "cpu"', conf) as person:
            said = person.ask("prove")
            assert "was not sent" in said
            assert "the clocks, or the keys of munge, of the two may differ" in said
    assert not [job for job in cluster.admin.jobs(are_over=True) if int(job["id"]) > cluster.swept_up_to]
