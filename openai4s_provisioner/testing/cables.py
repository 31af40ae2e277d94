"""A cable between a worker and its gateway that is cut where a test says, or goes silent.

It sits on the real seam: it listens where the worker dials, dials where the gateway listens, and passes bytes on in
between without looking at them. Each connection may have a place at which both of its ends are closed, to the byte.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable
from typing import NamedTuple

_PIECE = 64 * 1024
# The longest first line is some 700 bytes; cuts below this are cuts in the handshake.
HANDSHAKE_BYTES = 400


class Cut(NamedTuple):
    """Where a connection ends: once `after` bytes went towards the worker (`down`) or towards the server."""

    down: bool
    after: int


Plan = Callable[[int], "Cut | None"]
"""The cut of the n-th connection, from 0; None leaves it whole."""

# Between the burn and its answer; then in the challenge, the proof and the welcome of a resume.
IN_THE_HANDSHAKE = (Cut(True, 0), Cut(False, 0), Cut(False, 50), Cut(True, 20), Cut(False, 130), Cut(True, 105))


def cuts_at_random(seed: int, mean_bytes: int, most: int, in_handshake: float = 0.2) -> Plan:
    """The cuts of `IN_THE_HANDSHAKE` first, then `most` in all at random bytes of either direction."""
    chosen = random.Random(seed)  # noqa: S311

    def plan(number: int) -> Cut | None:
        if number < len(IN_THE_HANDSHAKE):
            return IN_THE_HANDSHAKE[number]
        if number >= most:
            return None
        if chosen.random() < in_handshake:
            return Cut(chosen.random() < 0.5, chosen.randrange(HANDSHAKE_BYTES))
        # The server says far less than the kernel, so a cut of its direction comes as early as one of the other's.
        down = chosen.random() < 0.5
        rate = 1000 / mean_bytes if down else 1 / mean_bytes
        return Cut(down, HANDSHAKE_BYTES + int(chosen.expovariate(rate)))

    return plan


class CableThatIsCut:
    """A Unix socket at `path` that leads to the one at `target()`. `cuts` says how many planned ones happened."""

    def __init__(self, path: str, target: Callable[[], str], plan: Plan = lambda number: None) -> None:
        self.cuts = 0
        self.cuts_in_handshake = 0
        self.connections = 0
        self._target = target
        self._plan = plan
        self._flows = threading.Event()
        self._flows.set()
        self._ends: set[socket.socket] = set()
        self._guard = threading.Lock()
        self._is_closed = False
        self._refuses = False
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(16)
        self.address = f"unix:{path}"
        self._spawn(self._accept)

    def cut_now(self) -> None:
        """Close every connection that stands."""
        with self._guard:
            ends, self._ends = self._ends, set()
        for end in ends:
            _shut(end)

    def go_silent(self) -> None:
        """Pass nothing on any more, and close nothing either: the peer has lost its power."""
        self._flows.clear()

    def refuse(self) -> None:
        """Close what stands, and whoever dials, at once."""
        self._refuses = True
        self.cut_now()

    def flow_again(self) -> None:
        """New connections pass; those that stood went with the power."""
        self._refuses = False
        self.cut_now()
        self._flows.set()

    def close(self) -> None:
        self._is_closed = True
        _shut(self._listener)
        self._listener.close()
        self.flow_again()
        for thread in self._threads:
            thread.join(10)

    def _spawn(self, function: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True, name="cable")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                if self._refuses:
                    raise ConnectionRefusedError
                far.connect(self._target())
            except OSError:
                near.close()
                far.close()
                continue
            number, self.connections = self.connections, self.connections + 1
            with self._guard:
                self._ends |= {near, far}
            cut = self._plan(number)
            up, down = (None if cut is None or cut.down != is_down else cut.after for is_down in (False, True))
            self._spawn(self._serve, near, far, up, down)

    def _serve(self, near: socket.socket, far: socket.socket, up: int | None, down: int | None) -> None:
        back = threading.Thread(target=self._pass_on, args=(far, near, down), daemon=True, name="cable")
        back.start()
        self._pass_on(near, far, up)
        back.join()
        near.close()
        far.close()

    def _pass_on(self, source: socket.socket, sink: socket.socket, left: int | None) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE):
                self._flows.wait()
                if left is not None and len(data) >= left - passed:
                    sink.sendall(data[: left - passed])
                    self._count(left)
                    break
                sink.sendall(data)
                passed += len(data)
        with self._guard:
            self._ends -= {source, sink}
        _shut(source)
        _shut(sink)

    def _count(self, after: int) -> None:
        with self._guard:
            self.cuts += 1
            self.cuts_in_handshake += after < HANDSHAKE_BYTES


def _shut(end: socket.socket) -> None:
    """Wakes whoever reads or writes it; closing alone does not."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
