"""The newest values of what sessions use: added up over ranks, bounded, and forgotten when they are old."""

from __future__ import annotations

import pytest

from openai4s_provisioner.orchestration.usage import OLD_S, GpuUsage, Usage, UsageBoard

TOLD = {"cpu_percent": 50.0, "memory_mb": 100, "memory_limit_mb": 1000, "gpus": [{"percent": 7, "memory_mb": 9}]}


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


@pytest.fixture
def board(clock: list[float]) -> UsageBoard:
    return UsageBoard(lambda: clock[0])


def test_the_ranks_of_a_session_are_added_up(board: UsageBoard, clock: list[float]) -> None:
    assert board.of("w") is None
    board.note("w", "a", 1, TOLD, 0)
    clock[0] += 5
    board.note("w", "a", 0, {**TOLD, "cpu_percent": 25.5}, 0)
    cards = (GpuUsage(0, 7, 9), GpuUsage(1, 7, 9))
    assert board.of("w") == Usage(75.5, 200, 2000, cards, 1005.0)


def test_what_is_old_is_no_longer_told(board: UsageBoard, clock: list[float]) -> None:
    board.note("w", "a", 0, TOLD, 0)
    clock[0] += OLD_S + 1
    assert board.of("w") is None


def test_a_new_attempt_begins_anew(board: UsageBoard) -> None:
    board.note("w", "a", 0, TOLD, 0)
    board.note("w", "a", 1, TOLD, 0)
    board.note("w", "b", 0, TOLD, 0)
    found = board.of("w")
    assert found is not None
    assert found.memory_mb == 100


def test_the_tighter_limit_counts_and_none_is_none(board: UsageBoard) -> None:
    for told, profile, limit in ((1000, 500, 500), (1000, 0, 1000), (None, 500, 500), (None, 0, None)):
        board.note("w", f"{told}{profile}", 0, {**TOLD, "memory_limit_mb": told}, profile)
        found = board.of("w")
        assert found is not None
        assert found.memory_limit_mb == limit


@pytest.mark.parametrize("wrong", [{"cpu_percent": "x"}, {"memory_mb": -1}, {"memory_mb": 1e30}, {"memory_mb": True}])
def test_a_word_that_is_no_number_is_refused(board: UsageBoard, wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no number"):
        board.note("w", "a", 0, {**TOLD, **wrong}, 0)
    assert board.of("w") is None


def test_what_a_worker_says_is_bounded(board: UsageBoard) -> None:
    board.note("w", "a", 0, {**TOLD, "gpus": [{"percent": 1, "memory_mb": 1}] * 1000}, 0)
    found = board.of("w")
    assert found is not None
    assert len(found.gpus) == 64
    board.note("w", "a", 0, {**TOLD, "gpus": "all"}, 0)
    found = board.of("w")
    assert found is not None
    assert found.gpus == ()
