"""The loop of the reclaimer and of the watch over ends: when it takes a turn, and what does not stop it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from openai4s_provisioner.orchestration.due_loop import DueLoop

pytestmark = pytest.mark.anyio
A_LONG_TIME_S = 3600.0


async def taken(turns: list[float], count: int) -> None:
    async with asyncio.timeout(10):
        while len(turns) < count:  # noqa: ASYNC110 - what is waited for is told to nobody
            await asyncio.sleep(0.005)


def loop_of(turn: Callable[[], Awaitable[float | None]], period_s: float = A_LONG_TIME_S) -> DueLoop:
    return DueLoop(turn, period_s, lambda: asyncio.get_running_loop().time(), "the test")


async def test_it_takes_a_turn_when_something_is_due_long_before_its_period() -> None:
    turns: list[float] = []

    async def turn() -> float | None:
        turns.append(asyncio.get_running_loop().time())
        return turns[0] + 0.05 if len(turns) == 1 else None

    loop = loop_of(turn)
    loop.start()
    await taken(turns, 2)
    await loop.stop()
    assert turns[1] - turns[0] >= 0.045


async def test_it_takes_a_turn_after_its_period_whatever_is_due_later() -> None:
    turns: list[float] = []

    async def turn() -> float | None:
        turns.append(asyncio.get_running_loop().time())
        return turns[-1] + A_LONG_TIME_S

    loop = loop_of(turn, period_s=0.02)
    loop.start()
    await taken(turns, 3)
    await loop.stop()


async def test_a_poke_takes_a_turn_now_and_one_during_a_turn_is_not_lost() -> None:
    turns: list[float] = []

    async def turn() -> float | None:
        turns.append(0.0)
        if len(turns) == 2:
            loop.poke()  # something happened that this turn has not seen
        return None

    loop = loop_of(turn)
    loop.start()
    await taken(turns, 1)
    loop.poke()
    await taken(turns, 3)
    await loop.stop()
    await loop.stop()
    assert len(turns) == 3


async def test_a_turn_that_fails_is_said_and_taken_again(caplog: pytest.LogCaptureFixture) -> None:
    turns: list[float] = []

    async def turn() -> float | None:
        turns.append(0.0)
        raise RuntimeError("boom")

    loop = loop_of(turn, period_s=0.01)
    with caplog.at_level(logging.ERROR):
        loop.start()
        await taken(turns, 2)
        await loop.stop()
    assert "a turn of the test failed; the next one tries again" in caplog.text


async def test_what_is_overdue_is_not_asked_after_without_a_pause() -> None:
    turns: list[float] = []

    async def turn() -> float | None:
        turns.append(asyncio.get_running_loop().time())
        return 0.0

    loop = loop_of(turn)
    loop.start()
    await taken(turns, 3)
    await loop.stop()
    assert turns[2] - turns[0] >= 0.035


@pytest.mark.parametrize("steps", range(4))
async def test_it_stops_though_it_is_poked_at_that_moment(steps: int) -> None:
    turns: list[float] = []

    async def turn() -> float | None:
        turns.append(0.0)
        return None

    loop = loop_of(turn)
    loop.start()
    await taken(turns, 1)
    loop.poke()
    for _ in range(steps):
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await loop.stop()
