"""The table from the shim's words to the core's: total, and final where an end was written."""

from __future__ import annotations

import pytest

from openai4s_backend_local import outcome, shim
from openai4s_backend_local.process_tree import Life, Standing
from openai4s_backend_local.receipts import Ended, Exit, Receipt, Started
from openai4s_provisioner.orchestration.ports import Observed
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.worker.exit_codes import ExitCode

_STARTED = Started(pid=1, start_time=1, boot_id="b", host="h", allocation_id="a", started_at=0.0)


def _receipt(ended: Ended | None = None, worker: Exit | None = None, cancel_asked: bool = False) -> Receipt:
    return Receipt("t", None, _STARTED, worker, ended, cancel_asked)


@pytest.mark.parametrize(
    ("exit_", "state", "reason"),
    [
        (Exit(0, None), Observed.COMPLETED, None),
        (Exit(1, None), Observed.FAILED, Reason.WORKER_LOST),
        (Exit(None, 9), Observed.FAILED, Reason.WORKER_LOST),
        (Exit(ExitCode.SERVER_GONE, None), Observed.FAILED, Reason.SERVER_GONE),
        (Exit(ExitCode.NEVER_REGISTERED, None), Observed.FAILED, Reason.WORKER_REGISTRATION_TIMEOUT),
        (Exit(ExitCode.BAD_ATTEMPT, None), Observed.FAILED, Reason.BOOTSTRAP_FAILED),
        (Exit(ExitCode.BAD_USAGE, None), Observed.FAILED, Reason.BOOTSTRAP_FAILED),
        (Exit(ExitCode.UNRECORDED, None), Observed.FAILED, Reason.WORKER_LOST),
    ],
)
def test_every_exit_of_a_worker_has_its_line(exit_: Exit, state: Observed, reason: Reason | None) -> None:
    seen = outcome.observation(_receipt(Ended(shim.EXITED, exit_)), Standing(Life.NOTHING))
    assert (seen.state, seen.reason, seen.exit_code) == (state, reason, exit_.exit_code)


def test_every_exit_code_of_the_worker_is_in_the_table() -> None:
    assert set(outcome._EXIT_CODES) == set(ExitCode)


def test_every_word_of_the_shim_is_in_the_table_and_a_strange_one_is_a_lost_worker() -> None:
    words = {shim.CANCELLED, shim.TERMINATED, shim.TIME_LIMIT, shim.NOT_STARTED}
    assert set(outcome._WORDS) == words
    strange = outcome.observation(_receipt(Ended("vanished", Exit(0, None))), Standing(Life.NOTHING))
    assert (strange.state, strange.reason) == (Observed.FAILED, Reason.WORKER_LOST)
    assert "vanished" in strange.backend_detail


@pytest.mark.parametrize("life", list(Life))
def test_an_end_that_was_written_is_final_whatever_is_seen(life: Life) -> None:
    receipt = _receipt(Ended(shim.EXITED, Exit(0, None)), cancel_asked=True)
    assert outcome.observation(receipt, Standing(life)).state is Observed.COMPLETED


def test_an_allocation_that_was_asked_to_end_is_ending_while_anything_lives() -> None:
    for life in (Life.LED, Life.LEADERLESS):
        assert outcome.observation(_receipt(cancel_asked=True), Standing(life)).state is Observed.ENDING
        assert outcome.observation(_receipt(), Standing(life)).state is Observed.RUNNING
