"""What a site refuses, and sites with habits of their own, met by a person who starts a kernel: one clear sentence.

No job is left, and where the sentence names a remedy, that remedy works.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster

from .clocks import CLOCKS
from .people import Person, PersonError
from .session_jobs import jobs, nothing_left

pytestmark = pytest.mark.timeout(600)
SHORT: dict[str, Any] = dict(CLOCKS)
BANNER = """#!/bin/sh
echo 'Welcome to the cluster. Job 17 of 20 today.'
echo 'Your group has 12 hours left.' >&2
/usr/bin/sbatch "$@" || exit
echo 'Have a nice day!'
"""
NO_COMMENTS = """#!/bin/sh
for option; do
    case "$option" in
    --comment*)
        echo "sbatch: unrecognized option '$option'" >&2
        echo 'Try "sbatch --help" for more information' >&2
        exit 1
        ;;
    esac
done
exec /usr/bin/sbatch "$@"
"""


@pytest.fixture
def wrapped(ordinary_user: Any) -> Iterator[Any]:
    """`wrapped(text)`: the lines of ``[backends.slurm]`` for a site with this program as its sbatch."""
    wrapper: Path = ordinary_user.home / "site-sbatch"

    def made(text: str) -> str:
        wrapper.write_text(text)
        wrapper.chmod(0o755)
        return f'commands = {{ sbatch = "{wrapper}" }}'

    yield made
    wrapper.unlink(missing_ok=True)


def refused(person: Person, cluster: Cluster, wait_until: Any) -> str:
    """What is said instead of a kernel; nothing is left in the queue."""
    with pytest.raises(PersonError) as caught:
        person.ask("start", 180.0)
    nothing_left(cluster, wait_until)
    said = str(caught.value)
    assert said.count("\n") == 0, "one sentence after another, on one line"
    return said


@pytest.mark.parametrize(
    ("profile", "told"),
    [
        (
            'partition = "cpu"\ncpus = 900',
            r"could never start: .* more than its machines have.*\. Ask your administrator",
        ),
        ('partition = "gpu"\ngpus = 9', r"No machine of this cluster can ever grant what the profile asks"),
        ('partition = "cpu"\nnodes = 9', r"asks for more machines than there are for it\. Choose a profile with fewer"),
        ('partition = "nope"', r"was refused\. The profile names machines that this cluster does not have"),
        ('partition = "cpu"\nconstraint = "quantum"', r"asks for a feature that no machine here has"),
        ('partition = "cpu"\ngres = "tpu:1"', r"asks for a kind of device that does not exist here"),
    ],
)
def test_what_no_machine_can_serve_is_said_and_leaves_no_job(
    cluster: Cluster, ordinary_user: Any, wait_until: Any, profile: str, told: str
) -> None:
    with Person(ordinary_user, cluster, profile, **SHORT) as person:
        said = refused(person, cluster, wait_until)
        assert re.search(told, said), said
        assert all(each["state"] == "ended" for each in person.ask("shown"))


def test_a_wrapper_with_a_banner_gets_one_job_and_a_kernel(
    cluster: Cluster, ordinary_user: Any, wrapped: Any, wait_until: Any
) -> None:
    with Person(ordinary_user, cluster, 'partition = "cpu"', wrapped(BANNER), **SHORT) as person:
        assert person.ask("prove") == ""
        cluster.count_from_here()
        person.start()
        assert person.value("6 * 7") == "42"
        assert len(jobs(cluster)) == 1
        person.ask("shut_down")
        nothing_left(cluster, wait_until)


def test_an_option_that_a_wrapper_refuses_is_named_and_can_be_left_out(
    cluster: Cluster, ordinary_user: Any, wrapped: Any, wait_until: Any
) -> None:
    site = wrapped(NO_COMMENTS)
    with Person(ordinary_user, cluster, 'partition = "cpu"', site, **SHORT) as person:
        said = refused(person, cluster, wait_until)
        assert "This site refuses one of the options. Add --comment to remove_options of the profile" in said
        assert not jobs(cluster)
    mended = 'partition = "cpu"\nremove_options = ["--comment"]'
    with Person(ordinary_user, cluster, mended, site, **SHORT) as person:
        person.start()
        assert person.value("6 * 7") == "42"
        person.ask("shut_down")
        nothing_left(cluster, wait_until)


def test_where_a_job_without_devices_would_wait_for_ever_the_proof_asks_for_them(
    accounting_cluster: Cluster, ordinary_user: Any, wait_until: Any
) -> None:
    """The rule is a QoS's: the job is taken, and its reason to wait never clears."""
    cluster, admin = accounting_cluster, accounting_cluster.admin
    admin.command("sacctmgr", "-i", "add", "qos", "devices", "MinTRESPerJob=gres/gpu=1")
    try:
        admin.command("sacctmgr", "-i", "modify", "user", ordinary_user.name, "set", "qos+=devices")
        wait_until(lambda: "devices" in rights_of(cluster, ordinary_user.name), "the controller to know of it", 30)
        profile = 'partition = "gpu"\ngpus = 1\nqos = "devices"'
        with Person(ordinary_user, cluster, profile, **SHORT) as person:
            assert person.ask("prove", 120.0) == ""
            assert len(jobs(cluster)) == 2, "one that could never start, and one as the profile asks"
            nothing_left(cluster, wait_until)
            assert (person.root / "home/.local/state/openai4s/slurm/refuse-small-proofs").exists()
    finally:
        admin.command("sacctmgr", "-i", "modify", "user", ordinary_user.name, "set", "qos-=devices")
        admin.command("sacctmgr", "-i", "delete", "qos", "devices")


def rights_of(cluster: Cluster, user: str) -> str:
    found: str = cluster.run(["scontrol", "-o", "show", "assoc_mgr", f"users={user}", "flags=qos"]).stdout
    return found
