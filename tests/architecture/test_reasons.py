"""Every reason that a person may be given has somebody who gives it, and a test that shows it given."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from openai4s_provisioner.orchestration.reasons import Reason

from .tree import BACKENDS, CORE, REPOSITORY

SCHEDULERS = "a scheduler's own word"  # no part of the core can know this; a backend's table says it


@dataclass(frozen=True)
class Given:
    by: str  # module of the core, or SCHEDULERS
    shown_in: str  # test file
    test: str


_PLANE = "tests/integration/test_*.py"
GIVEN: dict[Reason, Given] = {
    Reason.AUTHENTICATION_FAILED: Given(
        "orchestration/frontdesk.py",
        "tests/integration/test_refused_workers.py",
        "test_a_credential_that_was_used_before_is_refused_as_such",
    ),
    Reason.AUTHORIZATION_DENIED: Given(
        "orchestration/tasks.py",
        "tests/integration/test_refused_tasks.py",
        "test_a_task_is_refused_to_strangers_and_where_none_can_run",
    ),
    Reason.QUOTA_EXCEEDED: Given("orchestration/store/store.py", _PLANE, "test_the_last_place_is_given_once"),
    Reason.POLICY_REJECTED: Given(
        "orchestration/admission.py",
        "tests/unit/test_admission.py",
        "test_a_path_that_would_uncover_something_masked_is_refused_by_name",
    ),
    Reason.INVALID_SPEC: Given(
        "orchestration/admission.py",
        "tests/unit/test_admission.py",
        "test_each_refusal_says_what_is_wrong_and_what_to_do",
    ),
    Reason.BACKEND_UNAVAILABLE: Given(
        "orchestration/admission.py",
        "tests/unit/test_admission.py",
        "test_each_refusal_says_what_is_wrong_and_what_to_do",
    ),
    Reason.BACKEND_SUBMISSION_UNKNOWN: Given(
        "orchestration/plan.py", _PLANE, "test_a_submission_that_never_lands_fails_after_a_few_attempts"
    ),
    Reason.BACKEND_REJECTED: Given(
        "orchestration/tasks.py",
        "tests/integration/test_refused_tasks.py",
        "test_a_task_is_refused_to_strangers_and_where_none_can_run",
    ),
    Reason.UNSCHEDULABLE: Given(
        SCHEDULERS, _PLANE, "test_a_rejected_submission_ends_the_session_in_the_backends_words"
    ),
    Reason.BOOTSTRAP_FAILED: Given(
        "orchestration/plan.py", "tests/unit/test_plan.py", "test_an_explicit_word_is_final_at_once"
    ),
    Reason.WORKER_REGISTRATION_TIMEOUT: Given(
        "orchestration/plan.py",
        "tests/integration/test_refused_workers.py",
        "test_who_was_turned_away_is_named_when_no_worker_came_in_time",
    ),
    Reason.WORKER_LOST: Given(
        "orchestration/plan.py", _PLANE, "test_a_rank_that_stays_silent_ends_the_session_as_lost"
    ),
    Reason.NODE_FAILED: Given(SCHEDULERS, "tests/integration/test_recovery.py", "test_nobody_connected_makes_it_final"),
    Reason.OUT_OF_MEMORY: Given(
        SCHEDULERS, _PLANE, "test_our_reason_survives_what_the_backend_reports_and_both_are_kept"
    ),
    Reason.TIME_LIMIT_EXCEEDED: Given(
        SCHEDULERS,
        "backends/openai4s_backend_local/tests/test_time_limit.py",
        "test_the_time_limit_ends_the_tree_and_is_the_reason",
    ),
    Reason.PREEMPTED: Given(
        SCHEDULERS, "tests/integration/test_recovery.py", "test_the_fourth_loss_is_final_and_the_pauses_grow"
    ),
    Reason.USER_CANCELLED: Given(
        "live_kernels.py", "tests/integration/test_recovery.py", "test_a_wish_to_stop_wins_over_a_recovery"
    ),
    Reason.ADMIN_CANCELLED: Given(
        "orchestration/plan.py", "tests/unit/test_plan.py", "test_an_explicit_word_is_final_at_once"
    ),
    Reason.SESSION_IDLE_TIMEOUT: Given(
        "orchestration/leases.py", "tests/unit/test_leases.py", "test_the_idle_clock_warns_and_ends"
    ),
    Reason.SESSION_MAX_LIFETIME_EXCEEDED: Given(
        "orchestration/leases.py", "tests/unit/test_leases.py", "test_the_sooner_clock_counts"
    ),
    Reason.STALE_EPOCH: Given(
        "orchestration/frontdesk.py",
        "tests/integration/test_refused_workers.py",
        "test_a_requeued_worker_with_an_old_credential_is_refused_as_stale",
    ),
    Reason.DUPLICATE_SUBMISSION: Given(
        "orchestration/executor.py", _PLANE, "test_a_submission_that_landed_twice_is_cancelled_but_for_one"
    ),
    Reason.KERNEL_STATE_LOST: Given(
        "live_kernels.py",
        "tests/integration/test_lifecycle.py",
        "test_a_killed_worker_is_recovered_in_a_new_epoch_behind_the_same_sockets",
    ),
    Reason.ISOLATION_UNVERIFIED: Given(
        "orchestration/admission.py",
        "tests/unit/test_admission.py",
        "test_isolation_that_is_not_verified_refuses_with_the_remedy",
    ),
    Reason.WORKSPACE_UNREACHABLE: Given(
        "orchestration/reports.py", _PLANE, "test_an_answer_that_does_not_appear_here_means_another_folder"
    ),
    Reason.KERNEL_START_FAILED: Given(
        "orchestration/reports.py", _PLANE, "test_a_bad_report_before_ready_ends_the_session_with_its_reason"
    ),
    Reason.SERVER_GONE: Given(
        "orchestration/store/drivers.py",
        _PLANE,
        "test_after_a_crash_the_sessions_of_the_dead_process_are_ended_and_cleared",
    ),
}


def test_none_is_forgotten() -> None:
    assert set(GIVEN) == set(Reason)


@pytest.mark.parametrize("reason", Reason)
def test_somebody_gives_it(reason: Reason) -> None:
    given = GIVEN[reason]
    if given.by != SCHEDULERS:
        assert f"Reason.{reason}" in (CORE / given.by).read_text(encoding="utf-8")
        return
    packages = [folder for folder in BACKENDS.iterdir() if (folder / "__init__.py").is_file()]
    tables = [file.read_text(encoding="utf-8") for folder in packages for file in folder.glob("*.py")]
    is_there_a_scheduler = len(packages) > 1
    assert not is_there_a_scheduler or any(f"Reason.{reason}" in table for table in tables)


@pytest.mark.parametrize("reason", Reason)
def test_a_test_shows_it_given(reason: Reason) -> None:
    given = GIVEN[reason]
    texts = [file.read_text(encoding="utf-8") for file in REPOSITORY.glob(given.shown_in)]
    (text,) = (each for each in texts if f"def {given.test}(" in each)
    assert reason in text


@pytest.mark.parametrize("reason", Reason)
def test_it_says_what_happened_and_what_to_do(reason: Reason) -> None:
    assert reason.sentence.endswith(".")
    assert reason.sentence.count(". ") >= 1, "two sentences: what happened, and what to do now"
