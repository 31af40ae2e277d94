"""Carry an answer of another thread back into the loop's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from ..transport.loop import Loop

_T = TypeVar("_T")


def when_answered(
    loop: Loop, future: Future[_T], answered: Callable[[_T], None], unanswered: Callable[[], None]
) -> None:
    """Call one of the two in the loop's thread, `unanswered` when the question failed; neither once it is over."""

    def in_the_loop() -> None:
        if future.cancelled() or future.exception() is not None:
            unanswered()
        else:
            answered(future.result())

    def done(_: Future[_T]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is over: nobody is left to hear it
            loop.call_soon_threadsafe(in_the_loop)

    future.add_done_callback(done)
