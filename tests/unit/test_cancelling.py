"""Ending a loop that waits, at any moment."""

from __future__ import annotations

import asyncio

import pytest

from openai4s_provisioner.orchestration.cancelling import ended


@pytest.mark.parametrize("turns", range(5))
def test_a_loop_ends_though_it_is_woken_at_the_moment_it_is_cancelled(turns: int) -> None:
    async def scenario() -> None:
        wake = asyncio.Event()

        async def loop() -> None:
            while True:
                await asyncio.wait_for(wake.wait(), 3600.0)
                wake.clear()

        task = asyncio.ensure_future(loop())
        await asyncio.sleep(0.01)
        wake.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(5.0):
            await ended([task])
        assert task.cancelled()

    asyncio.run(scenario())


def test_what_a_task_raised_is_dropped() -> None:
    async def scenario() -> None:
        async def breaks() -> None:
            raise ValueError

        task = asyncio.ensure_future(breaks())
        await asyncio.sleep(0)
        await ended([task])

    asyncio.run(scenario())
