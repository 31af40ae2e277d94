"""What the front desk turns away is counted with its reason, and named where somebody looks for a cause."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from openai4s_provisioner.jupyter.cli_batch import _turned_away
from openai4s_provisioner.orchestration.bootstrap import CREDENTIAL_LIFE_S
from openai4s_provisioner.orchestration.frontdesk import REFUSED
from openai4s_provisioner.orchestration.models import Phase
from openai4s_provisioner.orchestration.ports import Observed
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.refusals import Refusals
from openai4s_provisioner.orchestration.session import OpenedSession
from openai4s_provisioner.orchestration.store import Store
from openai4s_provisioner.orchestration.store.rows import EventRow
from openai4s_provisioner.testing.control_lab import ControlLab, in_lab
from openai4s_provisioner.testing.faulty_backends import ManualClock, ObedientBackend

KEY = b"k" * 32


@pytest.fixture
def backend(clock: ManualClock) -> ObedientBackend:
    return ObedientBackend(clock)


async def refused(lab: ControlLab, opened: OpenedSession | None) -> list[EventRow]:
    events = await lab.store.run(Store.events, None if opened is None else opened.workload_id)
    return [each for each in events if each.kind == REFUSED]


async def knock(lab: ControlLab, credential: str) -> None:
    assert await asyncio.wrap_future(lab.desk.register(credential, KEY, "host")) is None


def test_a_credential_that_was_used_before_is_refused_as_such(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        await knock(lab, await lab.credential(opened))
        (event,) = await refused(lab, opened)
        assert event.reason is Reason.AUTHENTICATION_FAILED
        assert event.detail == "worker 0 of attempt 1: its credential was used before"

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_a_requeued_worker_with_an_old_credential_is_refused_as_stale(tmp_path: Path, clock: ManualClock) -> None:
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        lab.clients_connected = True
        opened = await lab.active_session("k1")
        old = await lab.credential(opened)
        backend.say(Observed.FAILED, Reason.NODE_FAILED)
        await lab.turns(3)
        assert (await lab.situation(opened)).workload.epoch == 2
        await knock(lab, old)
        (event,) = await refused(lab, opened)
        assert event.reason is Reason.STALE_EPOCH
        assert "earlier attempt; the session is at attempt 2" in event.detail

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_a_worker_of_a_session_that_is_over_is_refused_as_stale(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        await lab.turns(2)
        credential = await lab.credential(opened)
        await lab.sessions.request_stop(opened.workload_id, Reason.ADMIN_CANCELLED, "admin")
        await knock(lab, credential)
        await lab.turns(4)
        assert (await lab.situation(opened)).workload.phase is Phase.CANCELLED
        await knock(lab, credential)
        stopping, over = await refused(lab, opened)
        assert (stopping.reason, over.reason) == (Reason.ADMIN_CANCELLED, Reason.STALE_EPOCH)

    in_lab(tmp_path, scenario, backend, clock=clock)


def test_who_was_turned_away_is_named_when_no_worker_came_in_time(
    tmp_path: Path, clock: ManualClock, backend: ObedientBackend
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.open("k1")
        await lab.turns()
        credential = await lab.credential(opened)
        clock.forward(CREDENTIAL_LIFE_S + 1)  # it queued for longer than that
        await lab.turns()
        await knock(lab, credential)
        await knock(lab, "forged.credential")
        clock.forward(301.0)
        await lab.turns(3)
        workload = (await lab.situation(opened)).workload
        assert workload.reason is Reason.WORKER_REGISTRATION_TIMEOUT
        assert "worker 0 of attempt 1: the credential has expired" in workload.reason_detail
        assert "the credential is not well formed" in workload.reason_detail
        assert credential not in workload.reason_detail

    in_lab(tmp_path, scenario, backend, clock=clock)


@pytest.mark.parametrize("genuine", [True, False], ids=["a used credential", "garbage"])
def test_a_flood_grows_neither_the_store_nor_the_log(
    genuine: bool, tmp_path: Path, clock: ManualClock, backend: ObedientBackend, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        used = await lab.credential(opened)
        answers = [lab.desk.register(used if genuine else f"{n}.x", KEY, "host") for n in range(2000)]
        assert {await asyncio.wrap_future(each) for each in answers} == {None}
        events = await refused(lab, opened if genuine else None)
        assert len(events) == 4, "the 1st, the 10th, the 100th, the 1000th"
        assert "1000 times since" in events[-1].detail
        shown = await lab.store.run(_turned_away, opened.workload_id)
        assert ("AUTHENTICATION_FAILED: worker 0 of attempt 1" in shown and "1000 times" in shown) is genuine

    with caplog.at_level(logging.DEBUG):
        in_lab(tmp_path, scenario, backend, clock=clock)
    assert len(caplog.records) < 50


def test_kinds_of_refusals_are_bounded() -> None:
    refusals = Refusals()
    for number in range(5000):
        refusals.note(Reason.AUTHENTICATION_FAILED, f"because {number}", None, float(number))
    assert len(refusals._met) == 1024
    assert "because 4999" in refusals.told("any", 4999.0)
