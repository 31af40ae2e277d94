"""Listening sockets: bind, accept without blocking, close and unlink. What is accepted goes to the owner's callback.

The Unix form takes only its own user's processes (and root's), besides the 0700 folder around it. The form for the
network is in `network_listener`; it refuses nothing that the handshake has to judge.
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

from ..orchestration.errors import ConfigError, StateError
from ..transport.loop import Loop

_log = logging.getLogger(__name__)
_PATH_BYTES = 107  # sun_path holds 108 with its final zero
_ACCEPT_AGAIN_S = 0.2
_OUT_OF_SOMETHING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

Accepted = Callable[[socket.socket], None]


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


class Acceptor:
    """Accepts on one listening socket, one connection a turn of the loop, for as long as it is started."""

    def __init__(self, loop: Loop, listening: socket.socket, address: str) -> None:
        self._loop = loop
        self._socket = listening
        self._address = address
        self._accepted: Accepted | None = None
        self._watched = False

    def start(self, accepted: Accepted) -> None:
        self._accepted = accepted
        self._watch()

    def pause(self) -> None:
        """Leave new connections in the backlog."""
        self._accepted = None
        if self._watched:
            self._watched = False
            self._loop.unwatch(self._socket.fileno())

    @property
    def is_asked(self) -> bool:
        """Whether somebody waits in the backlog."""
        if self._socket.fileno() < 0:
            return False
        asking = select.poll()
        asking.register(self._socket, select.POLLIN)
        return bool(asking.poll(0))

    def close(self) -> None:
        self.pause()
        self._socket.close()

    def _watch(self) -> None:
        if self._accepted is not None and not self._watched:
            self._watched = True
            self._loop.watch(self._socket.fileno(), readable=self._accept)

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
        if self._accepted is None:
            peer.close()
        else:
            self._accepted(peer)

    def _rest(self, error: OSError) -> None:
        """Out of descriptors: a level-triggered loop would spin on the connection that it cannot take."""
        _log.warning("cannot take a connection on %s: %s", self._address, error.strerror)
        self._watched = False
        self._loop.unwatch(self._socket.fileno())
        self._loop.call_later(_ACCEPT_AGAIN_S, self._watch)


class UnixListener:
    def __init__(self, loop: Loop, path: str, backlog: int) -> None:
        """Bind and listen; a connection waits in the backlog until `start`. Raises ConfigError or StateError."""
        check_socket_path(path)
        self._path = path
        self._closed = False
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            _bind_private(listening, path)
            listening.listen(backlog)
        except OSError as error:
            listening.close()
            raise StateError(f"The socket {path} cannot be opened: {error.strerror}.") from error
        self._inode = os.lstat(path).st_ino
        self._acceptor = Acceptor(loop, listening, path)

    @property
    def address(self) -> str:
        return f"unix:{self._path}"

    def start(self, accepted: Accepted) -> None:
        def from_same_user(peer: socket.socket) -> None:
            if is_same_user(peer):
                accepted(peer)
            else:
                peer.close()

        self._acceptor.start(from_same_user)

    def pause(self) -> None:
        """Leave new connections in the backlog."""
        self._acceptor.pause()

    @property
    def is_asked(self) -> bool:
        return self._acceptor.is_asked

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            if os.lstat(self._path).st_ino == self._inode:  # else somebody has bound the name anew
                os.unlink(self._path)
        self._acceptor.close()


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
