"""Jobs that wait, on real daemons: why, until when, and what becomes of those that could wait for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from openai4s_backend_slurm import judge
from openai4s_backend_slurm.backend import SlurmBackend
from openai4s_backend_slurm.lab import Cluster
from openai4s_provisioner.orchestration.models import ExternalHandle, ResourceProfile
from openai4s_provisioner.orchestration.ports import Created, Observation, Observed, Rejected
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.testing.backend_lab import BackendLab

Scenario = Callable[[SlurmBackend], Awaitable[None]]


def lives(lab: BackendLab, scenario: Scenario) -> None:
    async def life() -> None:
        backend = lab.open_backend()
        assert isinstance(backend, SlurmBackend)
        try:
            await scenario(backend)
        finally:
            await backend.close()

    asyncio.run(life())


def profile(lab: BackendLab, partition: str = "cpu", **changes: Any) -> ResourceProfile:
    options = {"partition": partition, **changes.pop("options", {})}
    return replace(lab.profile, backend_options=options, **changes)


async def seen(
    lab: BackendLab, backend: SlurmBackend, handle: ExternalHandle, condition: Callable[[Observation], object]
) -> Observation:
    """The first observation for which the condition holds."""
    last = Observation(Observed.UNKNOWN)

    async def holds() -> bool:
        nonlocal last
        before, last = last, (await backend.observe([handle]))[handle]
        if last != before:
            print(last)  # shown when the wait fails
        return bool(condition(last))

    await lab.until(holds, "an observation as expected")
    return last


async def submitted(lab: BackendLab, backend: SlurmBackend, wanted: ResourceProfile) -> ExternalHandle:
    answer = await backend.submit(lab.request(profile=wanted))
    assert isinstance(answer, Created), answer
    return answer.handle


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"walltime_s": 9 * 86400}, "more time than its machines are granted for"),
        ({"nodes": 9}, "more machines than there are for it"),
    ],
)
def test_what_no_partition_can_ever_grant_fails_and_leaves_no_job(
    backend_lab: BackendLab,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    wait_until: Any,
    changes: dict[str, Any],
    words: str,
) -> None:
    monkeypatch.setattr(judge, "_NEVER_AFTER_S", 4.0)

    async def scenario(backend: SlurmBackend) -> None:
        wanted = profile(backend_lab, **changes)
        if "nodes" in changes and cluster.version >= (24, 5):  # such a version does not even take it
            refused = await backend.submit(backend_lab.request(profile=wanted))
            assert isinstance(refused, Rejected), refused
            assert refused.reason is Reason.UNSCHEDULABLE
            assert "No machine of this cluster can ever grant" in refused.sentence
            return
        handle = await submitted(backend_lab, backend, wanted)
        waits = await seen(backend_lab, backend, handle, lambda each: words in each.waiting)
        assert waits.state is Observed.PENDING
        over = await backend_lab.ended(backend, handle)
        assert (over.state, over.reason) == (Observed.FAILED, Reason.UNSCHEDULABLE)
        assert words in over.explanation

    lives(backend_lab, scenario)
    wait_until(lambda: not cluster.run(["squeue", "-h"]).stdout.split(), "no job is left in the queue", 20)


def test_machines_that_are_drained_are_waited_for(
    backend_lab: BackendLab, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A maintenance: every machine of the partition is out of service, for longer than any reason is doubted."""
    monkeypatch.setattr(judge, "_NEVER_AFTER_S", 0.5)
    for node in ("c1", "c2"):
        cluster.admin.node_drain(node)

    async def scenario(backend: SlurmBackend) -> None:
        wanted: list[dict[str, Any]] = [{"nodes": 1}, {"nodes": 2}, {"options": {"nodelist": "c1"}}]
        handles = [await submitted(backend_lab, backend, profile(backend_lab, **each)) for each in wanted]
        for handle in handles:
            await seen(backend_lab, backend, handle, lambda each: "not available now" in each.waiting)
        looks = 0

        async def stood_for_a_while() -> bool:
            nonlocal looks
            looks += 1
            answers = await backend.observe(handles)
            assert {each.state for each in answers.values()} == {Observed.PENDING}
            return looks > 40  # each of which takes `min_interval_s`

        await backend_lab.until(stood_for_a_while, "the maintenance to last")
        for node in ("c1", "c2"):
            cluster.admin.node_resume(node)
        for handle in handles:
            await seen(backend_lab, backend, handle, lambda each: each.state is Observed.RUNNING)
            await backend.cancel(handle)
            await backend_lab.ended(backend, handle)

    lives(backend_lab, scenario)


@pytest.mark.parametrize(
    ("options", "changes", "reason"),
    [
        ({"partition": "nope"}, {}, Reason.INVALID_SPEC),
        ({"gres": "tpu:1"}, {}, Reason.INVALID_SPEC),
        ({}, {"memory_mb": 1 << 20}, Reason.UNSCHEDULABLE),
        ({"partition": "gpu"}, {"gpus": 9}, Reason.UNSCHEDULABLE),
        ({"sbatch_options": ["--no-such-option=1"]}, {}, Reason.INVALID_SPEC),
    ],
)
def test_what_the_cluster_refuses_is_refused_at_once(
    backend_lab: BackendLab, options: dict[str, Any], changes: dict[str, Any], reason: Reason
) -> None:
    async def scenario(backend: SlurmBackend) -> None:
        answer = await backend.submit(backend_lab.request(profile=profile(backend_lab, options=options, **changes)))
        assert isinstance(answer, Rejected)
        assert answer.reason is reason
        assert answer.sentence

    lives(backend_lab, scenario)


def test_a_queue_says_why_where_and_until_when(backend_lab: BackendLab, cluster: Cluster) -> None:
    cluster.admin.occupy("c1")

    async def scenario(backend: SlurmBackend) -> None:
        wanted = profile(backend_lab, options={"nodelist": "c1", "exclusive": True}, walltime_s=600)
        first = await submitted(backend_lab, backend, wanted)
        second = await submitted(backend_lab, backend, wanted)
        is_next = "it is next, and waits for machines to become free"  # once the important one has begun
        waits = await seen(
            backend_lab, backend, first, lambda each: each.waiting == is_next and each.estimated_start and each.position
        )
        assert waits.state is Observed.PENDING
        assert waits.position == 1
        backend._judge._position.__self__._known.clear()  # type: ignore[attr-defined]
        behind = await seen(backend_lab, backend, second, lambda each: each.position)
        assert behind.position == 2
        await backend.cancel(second)
        assert (await backend_lab.ended(backend, second)).state is Observed.CANCELLED
        await backend.cancel(first)
        assert (await backend_lab.ended(backend, first)).state is Observed.CANCELLED

    lives(backend_lab, scenario)


def test_a_held_job_is_explained_and_left_alone(backend_lab: BackendLab, cluster: Cluster) -> None:
    cluster.admin.occupy("c1")

    async def scenario(backend: SlurmBackend) -> None:
        wanted = profile(backend_lab, options={"nodelist": "c1", "exclusive": True})
        handle = await submitted(backend_lab, backend, wanted)
        number = handle.value.partition("/")[0]
        assert cluster.run(["scontrol", "hold", number]).returncode == 0
        waits = await seen(backend_lab, backend, handle, lambda each: "hold" in each.waiting)
        assert waits.state is Observed.PENDING
        await backend.cancel(handle)
        await backend_lab.ended(backend, handle)

    lives(backend_lab, scenario)


def test_a_job_whose_folder_vanished_before_it_ran_is_no_mystery(backend_lab: BackendLab, cluster: Cluster) -> None:
    """It cannot write a word itself: the controller says how it ended."""
    important = cluster.admin.occupy("c1")

    async def scenario(backend: SlurmBackend) -> None:
        request = backend_lab.request(profile=profile(backend_lab, options={"nodelist": "c1", "exclusive": True}))
        answer = await backend.submit(request)
        assert isinstance(answer, Created)
        request.attempt_dir.rename(request.attempt_dir.with_name("elsewhere"))
        cluster.run(["scancel", important])
        over = await backend_lab.ended(backend, answer.handle)
        assert over.state is Observed.FAILED, over
        assert over.reason in (Reason.BOOTSTRAP_FAILED, Reason.WORKER_LOST)

    lives(backend_lab, scenario)
