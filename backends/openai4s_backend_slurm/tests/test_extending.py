"""The time limit of real jobs: known, warned of, and put off where the site lets its users do that."""

from __future__ import annotations

import time
from typing import Any

import pytest

from openai4s_backend_slurm.lab import Account, Cluster, Shape

from .clocks import A_WHILE_S, CLOCKS
from .conftest import started
from .people import Person
from .session_jobs import jobs

pytestmark = pytest.mark.timeout(600)
SHORT: dict[str, Any] = dict(CLOCKS)
PROFILE = 'partition = "cpu"\nwalltime_s = 120\nmax_walltime_s = 3600'


def running(cluster: Cluster) -> str:
    (job,) = jobs(cluster, are_over=False)
    return job["id"]


def extended(person: Person, by: str) -> tuple[int, str, str]:
    process = person.terminal("extend", person.ask("kernel_id"), "--by", by)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def recorded(person: Person, kind: str, deadline_s: float = 90.0) -> None:
    """Wait until something of this kind is written down."""
    deadline = time.monotonic() + deadline_s
    while True:
        found = person.ask("recorded")
        if any(line.startswith(f"{kind} ") for line in found):
            return
        assert time.monotonic() < deadline, f"no {kind}: {found}, end {ends_at(person)}; {person.story()}"
        time.sleep(0.2)


def ends_at(person: Person) -> float:
    return float(person.ask("ends_at") or 0.0)


def test_where_only_operators_may_that_is_said_and_what_they_do_is_followed(
    ordinary_user: Any, either_cluster: Cluster, wait_until: Any
) -> None:
    cluster = either_cluster
    with Person(ordinary_user, cluster, PROFILE, **SHORT) as person:
        person.start()
        wait_until(lambda: ends_at(person) > 0, "the end to be known", A_WHILE_S)
        assert ends_at(person) - time.time() == pytest.approx(120, abs=60)
        status, _, refused = extended(person, "1h")
        assert status == 1
        assert "run for at most 60 minutes in all, so this one can be extended by 58 minutes at most" in refused
        status, _, refused = extended(person, "10m")
        assert status == 1
        assert "lets only its operators extend a running session" in refused
        assert refused.count("\n") == 1, "one sentence"
        assert "scontrol" not in refused, "in words of ours"
        recorded(person, "extension_refused")
        before = ends_at(person)
        cluster.admin.command("scontrol", "update", f"JobId={running(cluster)}", "TimeLimit=30")
        wait_until(lambda: ends_at(person) > before + 1000, "the operator's end to be known", A_WHILE_S)
        person.ask("shut_down")


def test_a_profile_that_fixes_its_time_limit_does_not_even_ask(
    ordinary_user: Any, cluster: Cluster, wait_until: Any
) -> None:
    with Person(ordinary_user, cluster, 'partition = "cpu"\nwalltime_s = 120', **SHORT) as person:
        person.start()
        status, _, refused = extended(person, "10m")
        assert status == 1
        assert "cannot be extended here: their time limit is fixed" in refused
        person.ask("shut_down")


def test_who_may_extend_a_job_gets_a_later_end(ordinary_user: Any, wait_until: Any) -> None:
    """The whole cluster belongs to this account, so that it is an operator."""
    account = Account.named(ordinary_user.name)
    profile = PROFILE + "\n[profiles.cluster.leases]\nwarn_s = 110"
    with (
        started(Shape(one_user=account)) as cluster,
        Person(ordinary_user, cluster, profile, **SHORT) as person,
    ):
        person.start()
        recorded(person, "walltime_warning")
        before = ends_at(person)
        status, told, refused = extended(person, "5m")
        assert (status, refused) == (0, "")
        assert "now runs until" in told
        assert ends_at(person) == pytest.approx(before + 300, abs=61), "at once, and whatever was on its way before"
        recorded(person, "walltime_warning_withdrawn")
        assert ends_at(person) == pytest.approx(before + 300, abs=61)
        asked = cluster.run(["squeue", "-h", "-o", "%l", "-j", running(cluster)]).stdout.strip()
        assert asked == "7:00"
        person.ask("shut_down")
