"""How many allocations one machine takes, and which settings the backend knows."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time

import pytest

from openai4s_backend_local import create_backend
from openai4s_provisioner.orchestration.errors import ConfigError
from openai4s_provisioner.orchestration.models import ResourceProfile
from openai4s_provisioner.orchestration.ports import AllocationBackend, Created, Rejected
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.testing.backend_contract import with_backend
from openai4s_provisioner.testing.backend_lab import BackendLab

from .bench import abandoned_claim, receipts_of


def test_the_limit_is_named_with_its_number_and_freed_by_an_end(backend_lab: BackendLab) -> None:
    lab = dataclasses.replace(backend_lab, options={"max_concurrent": 2, "kill_after_s": 0.5})

    async def scenario(backend: AllocationBackend) -> None:
        handles = [await lab.submitted(backend, lab.request()) for _ in range(2)]
        third = lab.request()
        other_process = lab.open_backend()
        for asked in (backend, other_process):
            refused = await asked.submit(third)
            assert isinstance(refused, Rejected)
            assert refused.reason is Reason.QUOTA_EXCEEDED
            assert "2 sessions" in refused.sentence
            assert "max_concurrent" in refused.sentence
        assert len(receipts_of(lab).tokens()) == 2
        await other_process.close()
        await backend.cancel(handles[0])
        await lab.ended(backend, handles[0])
        assert isinstance(await backend.submit(third), Created)

    with_backend(lab, scenario)


def test_submissions_that_race_for_the_last_place_do_not_both_get_it(backend_lab: BackendLab) -> None:
    lab = dataclasses.replace(backend_lab, options={"max_concurrent": 1, "kill_after_s": 0.5})
    requests = [lab.request() for _ in range(3)]
    begin = lab.exchange_dir / "begin"
    racers = [lab.submitter(request, begin) for request in requests]
    deadline = time.monotonic() + lab.patience_s
    while not all(any(r.attempt_dir.glob("ready-*")) for r in requests):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    begin.touch()
    answers = sorted(racer.communicate(timeout=lab.patience_s)[0].strip() for racer in racers)
    assert answers == ["Created", "Rejected", "Rejected"]


def test_options_are_refused_by_name(backend_lab: BackendLab) -> None:
    wrong: list[tuple[dict[str, object], str]] = [
        ({"colour": "blue"}, "colour"),
        ({"max_concurrent": 0}, "max_concurrent"),
        ({"max_concurrent": True}, "max_concurrent"),
        ({"max_concurrent": "16"}, "max_concurrent"),
        ({"max_concurrent": 1.5}, "max_concurrent"),
        ({"kill_after_s": -1}, "kill_after_s"),
        ({"kill_after_s": float("nan")}, "kill_after_s"),
    ]
    for options, key in wrong:
        with pytest.raises(ConfigError, match=key):
            create_backend(state_dir=backend_lab.state_dir, exchange_dir=backend_lab.exchange_dir, options=options)
    backend = backend_lab.open_backend()
    with pytest.raises(ConfigError, match="colour"):
        backend.check_profile(ResourceProfile("p", "local", backend_options={"colour": "blue"}))


def test_a_launch_under_way_is_not_swept_away_where_the_limit_is_reached(backend_lab: BackendLab) -> None:
    lab = dataclasses.replace(backend_lab, options={"max_concurrent": 1, "kill_after_s": 0.5})
    request = lab.request()
    receipts = abandoned_claim(lab, request)
    lock = receipts.take_launch_lock(request.token)
    assert lock is not None

    async def scenario(backend: AllocationBackend) -> None:
        refused = await backend.submit(lab.request())
        assert getattr(refused, "reason", None) is Reason.QUOTA_EXCEEDED, "a launch under way takes a place"
        more_generous = backend_lab.open_backend()
        running = await lab.submitted(more_generous, lab.request())
        submission = asyncio.create_task(backend.submit(request))
        await asyncio.sleep(0.1)  # the time to do it wrong
        assert set(receipts.tokens()) == {request.token, running.value}
        await backend.cancel(running)
        await lab.ended(backend, running)
        os.close(lock)
        assert isinstance(await submission, Created)
        await more_generous.close()

    with_backend(lab, scenario)
