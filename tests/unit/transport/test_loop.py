"""The readiness loop: order, threads, timers, and callbacks that fail."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from openai4s_provisioner.transport import loop as loop_module
from openai4s_provisioner.transport.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    made.call_later(20, made.stop)  # a test that goes wrong ends
    yield made
    made.close()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def fail() -> None:
    raise RuntimeError("on purpose")


def test_callbacks_run_in_order_and_stop_ends_the_loop_after_its_turn(loop: Loop) -> None:
    ran: list[int] = []
    loop.call_soon(ran.append, 1)
    loop.call_soon(loop.stop)
    loop.call_soon(ran.append, 2)
    loop.run()
    assert ran == [1, 2]


def test_other_threads_post_in_order_and_wake_a_sleeping_loop(loop: Loop) -> None:
    ran: list[int] = []
    thread = threading.Thread(target=loop.run)
    thread.start()
    for number in range(1000):
        loop.call_soon_threadsafe(ran.append, number)
    loop.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert ran == list(range(len(ran)))


def test_a_loop_that_was_stopped_before_it_ran_ends_at_once(loop: Loop) -> None:
    loop.stop()
    loop.run()


def test_posting_to_a_loop_that_is_over_says_so(loop: Loop) -> None:
    loop.stop()
    loop.run()
    loop.stop()
    with pytest.raises(RuntimeError, match="over"):
        loop.call_soon_threadsafe(print)


def test_a_loop_gives_its_descriptors_back() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        loop = Loop()
        loop.call_soon(loop.stop)
        loop.run()
    Loop().close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_timers_run_in_order_of_time_and_not_when_cancelled(loop: Loop) -> None:
    ran: list[str] = []
    loop.call_later(0.03, loop.stop)
    loop.call_later(0.02, ran.append, "second")
    loop.call_later(0.01, ran.append, "first")
    cancelled = loop.call_later(0.015, ran.append, "never")
    loop.call_soon(cancelled.cancel)
    loop.run()
    cancelled.cancel()
    assert ran == ["first", "second"]


def test_a_callback_that_raises_is_logged_and_ends_nothing(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    loop.call_soon(fail)
    loop.call_later(0, fail)
    loop.call_later(0.01, loop.stop)
    loop.run()
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


def test_a_descriptor_whose_callback_raises_rests_and_comes_back(
    loop: Loop,
    ends: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(loop_module, "REST_AFTER_ERROR_S", 0.02)
    calls: list[float] = []

    def readable() -> None:
        calls.append(loop.now())
        if len(calls) == 3:
            loop.stop()
        fail()

    ends[1].send(b"x")
    loop.watch(ends[0].fileno(), readable=readable)
    loop.run()
    assert len(calls) == 3
    assert calls[2] - calls[0] >= 0.04


@pytest.mark.parametrize("change", ["unwatch", "watch"])
def test_a_resting_descriptor_may_be_unwatched_and_watched_anew(
    loop: Loop, ends: tuple[socket.socket, socket.socket], caplog: pytest.LogCaptureFixture, change: str
) -> None:
    fd = ends[0].fileno()

    def readable() -> None:
        if change == "watch":
            loop.call_soon(lambda: loop.watch(fd, readable=loop.stop))
        else:
            loop.call_soon(loop.unwatch, fd)
            loop.call_soon(loop.stop)
        fail()

    ends[1].send(b"x")
    loop.watch(fd, readable=readable)
    loop.run()
    assert len(caplog.records) == 1


def test_watching_replaces_what_was_watched(loop: Loop, ends: tuple[socket.socket, socket.socket]) -> None:
    seen: list[str] = []
    fd = ends[0].fileno()
    ends[1].send(b"x")
    loop.watch(fd, readable=lambda: seen.append("old"), writable=lambda: seen.append("old"))
    loop.watch(fd, writable=lambda: seen.append("new"))
    loop.call_later(0.01, loop.stop)
    loop.run()
    assert set(seen) == {"new"}


def test_an_event_for_a_descriptor_that_was_unwatched_in_the_same_turn_is_void(loop: Loop) -> None:
    seen: list[str] = []
    with socket.socket() as _:
        pairs = [socket.socketpair() for _ in range(2)]
        for number, (one, other) in enumerate(pairs):
            other.send(b"x")

            def readable(number: int = number) -> None:
                seen.append("called")
                loop.unwatch(pairs[1 - number][0].fileno())
                loop.unwatch(pairs[number][0].fileno())
                loop.call_soon(loop.stop)

            loop.watch(one.fileno(), readable=readable)
        loop.run()
        for one, other in pairs:
            one.close()
            other.close()
    assert seen == ["called"]


def test_watching_nothing_is_unwatching(loop: Loop, ends: tuple[socket.socket, socket.socket]) -> None:
    ends[1].send(b"x")
    loop.watch(ends[0].fileno(), readable=fail)
    loop.watch(ends[0].fileno())
    loop.unwatch(ends[0].fileno())
    loop.call_later(0.01, loop.stop)
    loop.run()


def test_a_signal_handler_may_stop_the_loop_while_its_thread_posts(loop: Loop) -> None:
    with loop._lock:  # where the signal arrives
        loop.stop()
    loop.run()


def test_a_signal_handler_may_stop_the_loop(loop: Loop) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: loop.stop())
    try:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        started = loop.now()
        loop.run()
        assert loop.now() - started < 10
    finally:
        signal.signal(signal.SIGUSR1, before)
