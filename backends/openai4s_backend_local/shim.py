"""The shim: the process that leads one allocation on this machine.

It publishes its receipt, starts the worker, reaps everything below it and stays while any descendant lives, also one
that left its parent and its session behind (it is a subreaper). SIGTERM ends the tree: SIGTERM first, SIGKILL after a
grace. The receipt is published once per token, before the worker exists: a second shim of that token leaves at once.
Standard library only and Python 3.9, because it is run as a file of its own (``python -I -S shim.py ...``); what the
backend needs of the same knowledge it imports from here. It reads no secret and opens no socket.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

MARKER = "OPENAI4S_ALLOCATION"  # environment variable that names the allocation; no secret

# File names inside the folder of one token.
STARTED, WORKER, CANCEL, ENDED, LIMIT = "started", "worker", "cancel", "ended", "limit"

# Why an allocation ended, in this backend's words (`ended`, key "how").
EXITED, CANCELLED, TERMINATED, TIME_LIMIT, NOT_STARTED = (
    "exited",
    "cancelled",
    "terminated",
    "time limit",
    "not started",
)

# How the launcher ends, for the submitter that waits for it.
LAUNCHED, LAUNCH_FAILED, ALREADY_LAUNCHED = 0, 1, 3

_PR_SET_CHILD_SUBREAPER = 36
_WATCHED = frozenset({signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_LONGEST_WAIT_S = 3600.0
_LONGEST_KILL_PAUSE_S = 1.0
_WRITE_ATTEMPTS = 60  # one a second: a full disk may have room again


class Process(NamedTuple):
    """One line of the process table. (pid, start_time) is unique within one boot; a pid alone is not."""

    pid: int
    state: str
    parent: int
    session: int
    start_time: int  # clock ticks since boot

    @property
    def is_alive(self) -> bool:
        return self.state not in "ZXx"


def read_process(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            raw = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = raw[raw.rindex(b")") + 2 :].split()  # the command name may hold spaces and parentheses
    return Process(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


def all_processes() -> list[Process]:
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]


def descendants(pid: int) -> list[Process]:
    children: dict[int, list[Process]] = {}
    for process in all_processes():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += [process.pid for process in below]
    return [process for process in found if process.is_alive]


def send_signal(process: Process, signum: int) -> bool:
    """Signal exactly this process, never another one that got its pid. False: it is gone."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        handle = None  # before Linux 5.3, or filtered by a container: the check below is then all there is
    try:
        now = read_process(process.pid)
        if now is None or now.start_time != process.start_time:
            return False
        if handle is None:
            os.kill(process.pid, signum)
        else:
            signal.pidfd_send_signal(handle, signum)
        return True
    except ProcessLookupError:
        return False
    finally:
        if handle is not None:
            os.close(handle)


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def publish(path: str, record: dict[str, Any]) -> bool:
    """Write `record` durably and whole, unless `path` exists already: then False, and nothing changed."""
    folder = os.path.dirname(path)
    temporary = f"{path}.{os.getpid()}.{time.monotonic_ns()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w") as file:
            json.dump(record, file)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    sync_folder(folder)
    return True


def sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Leader:
    """Starts the worker, waits for the whole tree, ends it when asked. Lives in one thread, woken by signals only."""

    def __init__(self, folder: str, argv: list[str], grace_s: float, time_limit_s: float) -> None:
        self._folder = folder
        self._argv = argv
        self._grace_s = grace_s
        self._began_at = time.monotonic()
        self._time_limit_at = self._began_at + time_limit_s if time_limit_s > 0 else float("inf")
        self._worker = 0
        self._worker_status: int | None = None
        self._ending = ""  # why we end the tree; empty while we do not
        self._kill_at = float("inf")
        self._kill_pause_s = 0.01

    def run(self) -> dict[str, Any]:
        """Returns the record of the end."""
        if os.path.exists(self._path(CANCEL)):  # asked for between the submission and our receipt
            return {"how": CANCELLED, "exit_code": None, "signal": None}
        try:
            self._worker = os.posix_spawn(
                self._argv[0],
                self._argv,
                os.environ,
                setsigmask=(),
                setsigdef=[*_WATCHED, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGQUIT],
            )
        except OSError as error:
            return {"how": NOT_STARTED, "exit_code": None, "signal": None, "detail": str(error)}
        while self._reap():
            self._act(time.monotonic())
            self._wait()
        return {"how": self._ending or EXITED, **_exit_of(self._worker_status)}

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _reap(self) -> bool:
        """Collect every dead child. False when none is left: a subreaper without children has no descendants."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._worker:
                self._worker_ended(status)

    def _worker_ended(self, status: int) -> None:
        self._worker_status = status
        if self._ending:
            self._kill_at = time.monotonic()  # it had its grace; what it left behind has nobody to wait for
            return
        try:
            # A witness of the worker's exit, should we be killed while its descendants live on.
            publish(self._path(WORKER), _exit_of(status))
        except OSError as error:
            _log(f"could not write the worker's exit: {error}")

    def _act(self, now: float) -> None:
        if not self._ending and now >= self._time_limit_at:
            self._time_limit_at = self._began_at + self._extended_limit_s()
            if now >= self._time_limit_at:
                self._end(TIME_LIMIT)
        if now >= self._kill_at:
            _signal_each(descendants(os.getpid()), signal.SIGKILL)
            self._kill_pause_s = min(self._kill_pause_s * 2, _LONGEST_KILL_PAUSE_S)

    def _extended_limit_s(self) -> float:
        """Somebody may have asked meanwhile that the tree may live longer; 0 when nobody has."""
        try:
            with open(self._path(LIMIT)) as file:
                return float(json.load(file)["time_limit_s"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0.0

    def _wait(self) -> None:
        now = time.monotonic()
        if now >= self._kill_at:
            timeout = self._kill_pause_s  # a child forked during the walk is found by the next one
        else:
            limit = float("inf") if self._ending else self._time_limit_at
            timeout = min(self._kill_at - now, max(limit - now, 0), _LONGEST_WAIT_S)
        received = signal.sigtimedwait(_WATCHED, timeout)
        if received is not None and received.si_signo != signal.SIGCHLD and not self._ending:
            self._end(CANCELLED if os.path.exists(self._path(CANCEL)) else TERMINATED)

    def _end(self, how: str) -> None:
        self._ending = how
        self._kill_at = time.monotonic() + self._grace_s
        below = descendants(os.getpid())
        # The worker stops its own in its own order. Where it is gone, everybody is asked.
        asked = below if self._worker_status is not None else [p for p in below if p.pid == self._worker]
        _signal_each(asked, signal.SIGTERM)


def _signal_each(processes: Iterable[Process], signum: int) -> None:
    for process in processes:
        try:
            send_signal(process, signum)
        except PermissionError as error:  # a set-uid program: its own end is all we can wait for
            _log(f"cannot signal process {process.pid}: {error}")


def _exit_of(status: int | None) -> dict[str, int | None]:
    if status is None:
        return {"exit_code": None, "signal": None}
    if os.WIFSIGNALED(status):
        return {"exit_code": None, "signal": os.WTERMSIG(status)}
    return {"exit_code": os.WEXITSTATUS(status), "signal": None}


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _become_leader() -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # an inherited "ignore" would swallow every exit status
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)  # a request that comes before we wait for it stays pending
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def _own_receipt(time_limit_s: float) -> dict[str, Any]:
    own = read_process(os.getpid())
    if own is None:
        raise OSError("this process does not see itself in /proc")
    return {
        "pid": own.pid,
        "start_time": own.start_time,
        "boot_id": boot_id(),
        "host": platform.node(),
        "allocation_id": os.environ.get(MARKER, ""),
        "started_at": time.time(),
        "time_limit_s": time_limit_s,
    }


def _lead(options: argparse.Namespace, ready: int) -> None:
    _become_leader()
    first = publish(os.path.join(options.folder, STARTED), _own_receipt(options.time_limit_s))
    fcntl.flock(options.lock, fcntl.LOCK_UN)  # whoever finds it free knows that no launch of this token is under way
    os.close(options.lock)
    _answer(ready, LAUNCHED if first else ALREADY_LAUNCHED)
    if not first:
        return
    record = Leader(options.folder, options.argv, options.grace_s, options.time_limit_s).run()
    _publish_end(os.path.join(options.folder, ENDED), {**record, "ended_at": time.time()})


def _answer(ready: int, code: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the submitter stopped waiting; it finds the receipt later
        os.write(ready, bytes([code]))
    os.close(ready)


def _publish_end(path: str, record: dict[str, Any]) -> None:
    for _ in range(_WRITE_ATTEMPTS):
        try:
            publish(path, record)
            return
        except FileNotFoundError as error:
            _log(f"the receipt's folder is gone: {error}")
            return
        except OSError as error:
            _log(f"could not write how it ended: {error}")
            time.sleep(1)


def main() -> NoReturn:
    """Launcher and leader: forks, so that the leader is nobody's child, and waits until its receipt is published."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True, help="the token's folder")
    parser.add_argument("--lock", required=True, type=int, help="descriptor that holds the launch lock")
    parser.add_argument("--grace-s", required=True, type=float, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("--time-limit-s", required=True, type=float, help="seconds the worker may run; 0 = no limit")
    parser.add_argument("argv", nargs="+", help="the worker's command line")
    options = parser.parse_args()
    readable, writable = os.pipe()
    if os.fork() > 0:
        os.close(writable)
        os.close(options.lock)
        answer = os.read(readable, 1)
        os._exit(answer[0] if answer else LAUNCH_FAILED)
    os.close(readable)
    _lead(options, writable)
    sys.exit(0)


if __name__ == "__main__":
    main()
