"""The kernels of one worker, by launch, and the streams that lead to their sockets.

Every start of a kernel is a new launch with a sandbox of its own; a launch that is known already is not started twice,
so a repeated message does no harm. A stream for a kernel that does not exist, or no longer, is reset.
It never runs a person's code: what a launch asks for is run by the sandbox.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from typing import Any, Callable, Optional, Protocol

from ..transport.loop import Loop, Timer
from ..transport.relay import Splice, splice
from ..transport.spool import Spool
from ..transport.stream import Stream
from .activity import ActivityWatch
from .memory import ended_for_memory, memory_limit
from .notice import LossNotice

_log = logging.getLogger(__name__)
_CHANNELS = frozenset({"shell", "iopub", "stdin", "control", "hb"})
_FIRST_RETRY_S = 0.02
_LONGEST_RETRY_S = 0.5

Event = dict[str, Any]


class Kernel(Protocol):
    """One kernel in its sandbox, as this module needs it."""

    def start(self) -> None: ...

    def signal(self, signum: int) -> None: ...

    def stop(self, grace_s: float) -> None: ...

    def socket_path(self, channel: str) -> str: ...

    def close(self) -> None: ...


MakeKernel = Callable[[Optional[Event], Callable[[Event], None]], Kernel]


class Kernels:
    """`emit` gets every event of every kernel; `changed` is called when a kernel or a stream is over."""

    def __init__(
        self,
        loop: Loop,
        make: MakeKernel,
        emit: Callable[[Event], None],
        make_spool: Callable[[str, LossNotice], Spool],
        changed: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._make = make
        self._emit = emit
        self._make_spool = make_spool
        self._changed = changed
        self._live: dict[str, Kernel] = {}
        self._notices: dict[str, LossNotice] = {}
        self._known: set[str] = set()
        self._relays: set[_Relay] = set()
        self._watches: dict[str, ActivityWatch] = {}
        self._ended_before: dict[str, int] = {}  # for want of memory, when the launch began

    @property
    def are_running(self) -> bool:
        return bool(self._live)

    @property
    def are_relaying(self) -> bool:
        return bool(self._relays)

    def launch(self, launch: Event | None) -> None:
        """Start a kernel; without one, only prove the sandbox and the workspace, as the further ranks do."""
        launch_id = "" if launch is None else str(launch["launch_id"])
        if launch_id in self._known:
            return
        self._known.add(launch_id)
        kernel = self._make(launch, lambda event: self._heard(launch_id, event))
        self._live[launch_id] = kernel
        self._notices[launch_id] = LossNotice(launch or {})
        self._ended_before[launch_id] = ended_for_memory()
        kernel.start()
        # Encrypted end to end, what it does cannot be read here: then its lease has no idle clock.
        if launch is not None and launch_id in self._live and not launch.get("curve_publickey"):
            path = kernel.socket_path("iopub")
            watch = ActivityWatch(self._loop, launch_id, lambda: _connect(path), self._emit)
            self._watches[launch_id] = watch
            watch.start()

    def signal(self, launch_id: str, signum: int) -> None:
        kernel = self._live.get(launch_id)
        if kernel is not None:
            kernel.signal(signum)

    def stop(self, launch_id: str, grace_s: float) -> None:
        kernel = self._live.get(launch_id)
        if kernel is not None:
            kernel.stop(grace_s)

    def stop_all(self, grace_s: float) -> None:
        for launch_id in list(self._live):
            self.stop(launch_id, grace_s)

    def close(self) -> None:
        """Leave nothing behind, delivered or not."""
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()
        for kernel in self._live.values():
            kernel.close()
        self._live.clear()
        for relay in list(self._relays):
            relay.give_up()

    def folder_of(self, launch_id: str) -> str | None:
        """The private folder of a kernel that lives."""
        kernel = self._live.get(launch_id)
        return None if kernel is None else os.path.dirname(kernel.socket_path("control"))

    def relay(self, stream: Stream) -> None:
        launch_id, _, channel = stream.channel.partition("/")
        kernel = self._live.get(launch_id)
        if kernel is None or channel not in _CHANNELS:
            stream.reset()
            return
        spool = self._make_spool(launch_id, self._notices[launch_id]) if channel == "iopub" else None
        relay = _Relay(self._loop, stream, launch_id, kernel.socket_path(channel), spool, self._relay_over)
        self._relays.add(relay)
        relay.start()

    def _heard(self, launch_id: str, event: Event) -> None:
        is_exit = event.get("type") == "kernel_exited"
        if is_exit and launch_id in self._watches:
            self._watches.pop(launch_id).close()
        if is_exit and self._died_of_memory(launch_id, event):
            event = {**event, "out_of_memory": True, "tail": f"{event['tail']}\n{_no_memory()}".strip()}
        if launch_id or not is_exit:  # what only proved something had no kernel
            self._emit(event)
        if is_exit:
            kernel = self._live.pop(launch_id, None)
            self._notices.pop(launch_id, None)
            if kernel is not None:
                kernel.close()
            for relay in [relay for relay in self._relays if relay.launch_id == launch_id]:
                relay.kernel_gone()
            self._changed()

    def _died_of_memory(self, launch_id: str, event: Event) -> bool:
        """The system ended it, and has ended something of ours for want of memory since this kernel was started."""
        before = self._ended_before.pop(launch_id, 0)
        return event.get("signal") == signal.SIGKILL and ended_for_memory() > before

    def _relay_over(self, relay: _Relay) -> None:
        self._relays.discard(relay)
        self._changed()


def _no_memory() -> str:
    limit = memory_limit()
    told = "" if limit is None else f" ({limit // (1024 * 1024)} MB)"
    return f"The session used more memory than it may have{told}, so the system ended this process."


class _Relay:
    """One stream on its way to one of a kernel's sockets: it tries until the socket exists, then splices."""

    def __init__(
        self,
        loop: Loop,
        stream: Stream,
        launch_id: str,
        path: str,
        spool: Spool | None,
        over: Callable[[_Relay], None],
    ) -> None:
        self.launch_id = launch_id
        self._loop = loop
        self._stream = stream
        self._path = path
        self._spool = spool
        self._over = over
        self._retry: Timer | None = None
        self._pause_s = _FIRST_RETRY_S
        self._splice: Splice | None = None

    def start(self) -> None:
        self._stream.on_reset = self.give_up
        self._connect()

    def kernel_gone(self) -> None:
        """What the kernel said last is still delivered; a socket that never came will not come."""
        if self._splice is None:
            self.give_up()

    def give_up(self) -> None:
        if self._splice is not None:
            self._splice.close()
            return
        if self._retry is not None:
            self._retry.cancel()
        if self._spool is not None:
            self._spool.close()
        self._stream.reset()
        self._over(self)

    def _connect(self) -> None:
        self._retry = None
        peer = _connect(self._path)
        if peer is None:
            self._retry = self._loop.call_later(self._pause_s, self._connect)
            self._pause_s = min(_LONGEST_RETRY_S, self._pause_s * 1.5)
            return
        self._splice = splice(self._loop, self._stream, peer, self._spool, lambda: self._over(self))


def _connect(path: str) -> socket.socket | None:
    """None when nobody listens there. The folder belongs to the kernel, which may put a link to elsewhere there:
    that is not followed, or this process would be its way out of the sandbox."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        anchor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            peer.connect(f"/proc/self/fd/{anchor}")
        finally:
            os.close(anchor)
    except OSError:
        peer.close()
        return None
    return peer
