"""A readiness loop: file descriptors, timers, callbacks. The worker's main thread; a thread of its own in the server.

Everything but `stop` and `call_soon_threadsafe` belongs to the thread that runs it. A callback that raises is logged
and does not end the loop. A loop runs once: `run` closes it. It is not asyncio on purpose: a worker starts in half
the time without it, which shared file systems multiply.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

Callback = Callable[..., object]

# How long a descriptor whose callback raised is left alone: it is most likely still ready, and would raise again.
REST_AFTER_ERROR_S = 1.0

SCRATCH_BYTES = 256 * 1024

_log = logging.getLogger(__name__)


class Timer:
    """A callback for later. Cancelling one that ran, or twice, is nothing."""

    def __init__(self, callback: Callback, args: tuple[Any, ...]) -> None:
        self._call: tuple[Callback, tuple[Any, ...]] | None = (callback, args)

    def cancel(self) -> None:
        self._call = None

    def take(self) -> tuple[Callback, tuple[Any, ...]] | None:
        call, self._call = self._call, None
        return call


class _Watch:
    def __init__(self, readable: Callback | None, writable: Callback | None) -> None:
        self.readable = readable
        self.writable = writable
        self.resting = False

    @property
    def interest(self) -> int:
        if self.resting:
            return 0
        return (selectors.EVENT_READ if self.readable else 0) | (selectors.EVENT_WRITE if self.writable else 0)


class Loop:
    def __init__(self) -> None:
        # One receive buffer for everything that the loop drives. Its content is good until the callback returns.
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._selector = selectors.DefaultSelector()
        self._watches: dict[int, _Watch] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._ready: deque[tuple[Callback, tuple[Any, ...]]] = deque()
        # Over the three below, which other threads touch; reentrant, because a signal handler may call `stop`.
        self._lock = threading.RLock()
        self._posted: deque[tuple[Callback, tuple[Any, ...]]] = deque()
        self._stopping = False
        self._closed = False
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)

    # From any thread.

    def stop(self) -> None:
        """Ends `run` after the callbacks of its present turn. Also before `run`, and twice."""
        with self._lock:
            self._stopping = True
            self._wake()

    def call_soon_threadsafe(self, callback: Callback, *args: Any) -> None:
        """Runs in the loop's thread, in the order of calling. Raises RuntimeError when the loop is over."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the loop is over")
            self._posted.append((callback, args))
            self._wake()

    def _wake(self) -> None:
        if self._closed:
            return
        with contextlib.suppress(BlockingIOError):  # enough wake-ups wait already
            self._wake_write.send(b"\0")

    # From the loop's own thread (or before it runs).

    def now(self) -> float:
        return time.monotonic()

    def call_soon(self, callback: Callback, *args: Any) -> None:
        """Runs before the loop looks at its descriptors again."""
        self._ready.append((callback, args))

    def call_later(self, delay_s: float, callback: Callback, *args: Any) -> Timer:
        timer = Timer(callback, args)
        heapq.heappush(self._timers, (self.now() + max(0.0, delay_s), next(self._order), timer))
        return timer

    def watch(self, fd: int, *, readable: Callback | None = None, writable: Callback | None = None) -> None:
        """Calls `readable()` / `writable()` while `fd` is so. Replaces an earlier watch; both None is `unwatch`.

        Unwatch before closing the descriptor.
        """
        if readable is None and writable is None:
            self.unwatch(fd)
            return
        watch = _Watch(readable, writable)
        before = self._watches.get(fd)
        if before is not None and not before.resting:
            self._selector.modify(fd, watch.interest, watch)
        else:
            self._selector.register(fd, watch.interest, watch)
        self._watches[fd] = watch

    def unwatch(self, fd: int) -> None:
        """An `fd` that is not watched is nothing."""
        watch = self._watches.pop(fd, None)
        if watch is not None and not watch.resting:
            self._selector.unregister(fd)

    def run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        finally:
            self.close()

    def close(self) -> None:
        """Gives the descriptors back. `run` does it; only a loop that never runs needs it. Watched ones stay open."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._watches.clear()
            self._selector.close()
            self._wake_read.close()
            self._wake_write.close()

    # One turn.

    def _turn(self) -> None:
        for key, events in self._selector.select(self._patience()):
            if key.data is None:
                self._drain_wakeups()
            else:
                self._dispatch(key.fd, key.data, events)
        self._run_due_timers()
        with self._lock:
            posted, self._posted = self._posted, deque()
        self._ready.extend(posted)
        for _ in range(len(self._ready)):
            callback, args = self._ready.popleft()
            self._guard(callback, *args)

    def _patience(self) -> float | None:
        if self._ready:
            return 0.0
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - self.now())

    def _drain_wakeups(self) -> None:
        try:
            while len(self._wake_read.recv(4096)) == 4096:
                pass
        except BlockingIOError:
            pass

    def _dispatch(self, fd: int, watch: _Watch, events: int) -> None:
        """An earlier callback of this turn may have replaced or ended the watch: then its events are void."""
        for event, callback in ((selectors.EVENT_READ, watch.readable), (selectors.EVENT_WRITE, watch.writable)):
            if callback is None or not events & event or self._watches.get(fd) is not watch:
                continue
            if not self._guard(callback) and self._watches.get(fd) is watch:
                self._rest(fd, watch)

    def _rest(self, fd: int, watch: _Watch) -> None:
        watch.resting = True
        self._selector.unregister(fd)
        self.call_later(REST_AFTER_ERROR_S, self._end_rest, fd, watch)

    def _end_rest(self, fd: int, watch: _Watch) -> None:
        if self._watches.get(fd) is watch:
            watch.resting = False
            self._selector.register(fd, watch.interest, watch)

    def _run_due_timers(self) -> None:
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            call = heapq.heappop(self._timers)[2].take()
            if call is not None:
                self._guard(call[0], *call[1])

    def _guard(self, callback: Callback, *args: Any) -> bool:
        try:
            callback(*args)
        except Exception:
            _log.exception("a callback of the loop failed: %r", callback)
            return False
        return True
