"""A login host whose clock is off: its credentials are refused without a word, and the person hears what that means."""

from __future__ import annotations

from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster, missing_packages
from openai4s_backend_slurm.lab.login_host import login_host

from .people import Person, PersonError

pytestmark = pytest.mark.skipif(bool(missing_packages(clocks=True)), reason="needs the program faketime")


@pytest.mark.parametrize("by", ["+1h", "-1h"])
def test_a_clock_that_is_off_is_said_and_leaves_no_job(cluster: Cluster, ordinary_user: Any, by: str) -> None:
    with login_host(cluster, clock_off_by=by) as host:
        conf = f'slurm_conf = "{host.conf}"'
        with Person(ordinary_user, cluster, 'partition = "cpu"', conf) as person:
            said = person.ask("prove")
            assert "was not sent" in said
            assert "the clocks, or the keys of munge, of the two may differ" in said
            with pytest.raises(PersonError) as caught:
                person.ask("start", 180.0)
            told = str(caught.value)
            assert "could not be proven to be isolated" in told
            assert "the clocks, or the keys of munge, of the two may differ" in told
            assert person.ask("shown") == [], "nothing was begun"
    assert not [job for job in cluster.admin.jobs(are_over=True) if int(job["id"]) > cluster.swept_up_to]
