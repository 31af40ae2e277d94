"""Listening sockets: bind, accept without blocking, close and unlink. What is accepted goes to the owner's callback.

The Unix form takes only its own user's processes (and root's), besides the 0700 folder around it. A form for TCP
joins here as another class with the same three members; it refuses nothing that the handshake has to judge.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ..orchestration.errors import ConfigError, StateError
from ..transport.loop import Loop

_log = logging.getLogger(__name__)
_PATH_BYTES = 107  # sun_path holds 108 with its final zero
_ACCEPT_AGAIN_S = 0.2
_OUT_OF_SOMETHING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

Accepted = Callable[[socket.socket], None]


class Listener(Protocol):
    """A place to dial. `address` is what is written into a worker's attempt file."""

    @property
    def address(self) -> str: ...

    def start(self, accepted: Accepted) -> None: ...

    def close(self) -> None: ...


def check_socket_path(path: str) -> None:
    """Raise ConfigError when the system cannot bind a Unix socket there."""
    length = len(os.fsencode(path))
    if length > _PATH_BYTES:
        raise ConfigError(
            f"The socket path {path} has {length} bytes, and the system allows {_PATH_BYTES}: "
            "set XDG_RUNTIME_DIR or TMPDIR to a folder with a shorter path."
        )


def prepare_folder(folder: Path) -> bool:
    """Make sure of a folder that only we can enter. True when it did not exist before. Raises StateError."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        made = False
    except OSError as error:
        raise StateError(f"The folder {folder} for our sockets cannot be made: {error.strerror}.") from error
    else:
        made = True
    status = folder.lstat()
    if status.st_uid != os.geteuid() or (status.st_mode & 0o170777) != 0o040700:
        raise StateError(f"The folder {folder} must be yours alone (mode 0700): remove it, or name another.")
    return made


class UnixListener:
    def __init__(self, loop: Loop, path: str, backlog: int) -> None:
        """Bind and listen; a connection waits in the backlog until `start`. Raises ConfigError or StateError."""
        check_socket_path(path)
        self._loop = loop
        self._path = path
        self._accepted: Accepted | None = None
        self._watched = False
        self._closed = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            _bind_private(self._socket, path)
            self._socket.listen(backlog)
        except OSError as error:
            self._socket.close()
            raise StateError(f"The socket {path} cannot be opened: {error.strerror}.") from error
        self._inode = os.lstat(path).st_ino

    @property
    def address(self) -> str:
        return f"unix:{self._path}"

    def start(self, accepted: Accepted) -> None:
        self._accepted = accepted
        self._watch()

    def pause(self) -> None:
        """Leave new connections in the backlog."""
        self._accepted = None
        self._unwatch()

    @property
    def is_asked(self) -> bool:
        """Whether somebody waits in the backlog."""
        if self._closed:
            return False
        asking = select.poll()
        asking.register(self._socket, select.POLLIN)
        return bool(asking.poll(0))

    def close(self) -> None:
        if self._closed:
            return
        self.pause()
        self._closed = True
        with contextlib.suppress(OSError):
            if os.lstat(self._path).st_ino == self._inode:  # else somebody has bound the name anew
                os.unlink(self._path)
        self._socket.close()

    def _watch(self) -> None:
        if self._accepted is not None and not self._watched:
            self._watched = True
            self._loop.watch(self._socket.fileno(), readable=self._accept)

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            self._loop.unwatch(self._socket.fileno())

    def _accept(self) -> None:
        try:
            peer, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in _OUT_OF_SOMETHING:
                raise
            self._rest(error)
            return
        peer.setblocking(False)
        if self._accepted is None or not is_same_user(peer):
            peer.close()
            return
        self._accepted(peer)

    def _rest(self, error: OSError) -> None:
        """Out of descriptors: a level-triggered loop would spin on the connection that it cannot take."""
        _log.warning("cannot take a connection on %s: %s", self._path, error.strerror)
        self._unwatch()
        self._loop.call_later(_ACCEPT_AGAIN_S, self._watch)


def is_same_user(peer: socket.socket) -> bool:
    """Whether the process at the other end is ours or root's, as the kernel knows it."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return uid in (0, os.geteuid())


def _bind_private(listening: socket.socket, path: str) -> None:
    """Bind with mode 0600 from the first moment. What a dead process left there is replaced, a living one's is not."""
    if _is_answered(path):
        raise OSError(errno.EADDRINUSE, "another process listens there")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    os.fchmod(listening.fileno(), 0o600)  # Linux gives the file the socket's own mode, less the umask
    listening.bind(path)


def _is_answered(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as trial:
        trial.setblocking(False)
        try:
            trial.connect(path)
        except BlockingIOError:  # its backlog is full
            return True
        except OSError:
            return False
        return True
