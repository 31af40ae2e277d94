"""A stream as its owner sees it: callbacks in, writes and credit out. Made by a Link only.

The owner sets `on_data`, `on_end`, `on_reset` and `on_writable`, in any order, when it is ready: what arrives before
`on_data` is set is kept (the window bounds it) and delivered from the loop. Data counts against the peer's window
until `consume`d. A callback that raises is logged, and its stream is reset: what it had done so far is unknown.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..wire.mux import Mux

if TYPE_CHECKING:
    from .link import Link

LOW_WATER = 64 * 1024

_log = logging.getLogger(__name__)


class Stream:
    def __init__(self, link: Link, mux: Mux, stream_id: int, channel: str) -> None:
        self.channel = channel
        self.on_end: Callable[[], object] | None = None  # the peer sends no more
        self.on_reset: Callable[[], object] | None = None  # reset by the peer, or the link is over
        self.on_writable: Callable[[], object] | None = None  # data went out and little is `buffered`; may be spurious
        self.is_over = False  # reset by either end, or its link is over
        self._on_data: Callable[[bytes], object] | None = None
        self._held: deque[bytes] = deque()
        self._is_end_held = False
        self._link = link
        self._mux = mux
        self._id = stream_id

    @property
    def on_data(self) -> Callable[[bytes], object] | None:
        return self._on_data

    @on_data.setter
    def on_data(self, callback: Callable[[bytes], object]) -> None:
        self._on_data = callback
        if self._held or self._is_end_held:
            self._link.loop.call_soon(self._release_held)

    @property
    def buffered(self) -> int:
        """Bytes accepted by `write` and not yet on their way."""
        return self._mux.buffered(self._id)

    def write(self, data: bytes) -> None:
        """Accepts all of it; the writer watches `buffered` and waits for `on_writable`. Nothing once `is_over`.

        Raises ProtocolError after `finish`.
        """
        if not self.is_over:
            self._mux.write(self._id, data)
            self._link.schedule_flush()

    def consume(self, size: int) -> None:
        """Gives `size` received bytes back to the peer as credit."""
        if not self.is_over:
            self._mux.consume(self._id, size)
            self._link.schedule_flush()

    def finish(self) -> None:
        """No more writes; the peer's `on_end` comes after everything written."""
        if not self.is_over:
            self._mux.finish(self._id)
            self._link.schedule_flush()

    def reset(self) -> None:
        """Ends both directions now and drops what waits. No callback comes after this."""
        if not self.is_over:
            self.is_over = True
            self._held.clear()
            self._mux.reset(self._id)
            self._link.forget_stream(self._id)
            self._link.schedule_flush()

    # Called by the link.

    def got_data(self, data: bytes) -> None:
        if self._on_data is None or self._held:
            self._held.append(data)
        else:
            self._call(self._on_data, data)

    def got_end(self) -> None:
        if self._on_data is None or self._held:
            self._is_end_held = True
        elif self.on_end is not None:
            self._call(self.on_end)

    def got_reset(self) -> None:
        self.is_over = True
        self._held.clear()
        if self.on_reset is not None:
            self._call(self.on_reset)

    def made_progress(self) -> None:
        if self.on_writable is not None and self.buffered <= LOW_WATER:
            self._call(self.on_writable)

    def _release_held(self) -> None:
        while self._held and self._on_data is not None:
            self._call(self._on_data, self._held.popleft())
        if self._is_end_held and not self.is_over:
            self._is_end_held = False
            if self.on_end is not None:
                self._call(self.on_end)

    def _call(self, callback: Callable[..., object], *args: Any) -> None:
        try:
            callback(*args)
        except Exception:
            _log.exception("the owner of stream %s failed", self.channel)
            self.reset()
