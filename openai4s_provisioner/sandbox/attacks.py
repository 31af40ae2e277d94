"""What a session would try against a sibling of the same account, as a table of small functions.

Each returns whether it reached its victim, proven by a secret only the victim holds or by its exact identity, so that
a process or file of the same name inside a sandbox is never taken for it. None leaves a trace: nothing is stopped,
nothing is written into what belongs to a person. The same code attacks from outside (all must reach) and from inside
(none may).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_PTRACE_DETACH, _PTRACE_SEIZE, _PTRACE_INTERRUPT = 17, 0x4206, 0x4207
_WALL = 0x40000000  # wait for a tracee that is no child
_ONE_ATTACK_S = 5


@dataclass(frozen=True)
class Target:
    """Where the decoy is, as seen from outside every sandbox."""

    pid: int
    started: int  # clock ticks since boot: the same number in every pid namespace
    secret: str
    workspace_file: str
    credential_file: str
    private_temp_file: str
    open_file: int  # a descriptor of the decoy; what it leads to has no name any more
    login_file: str  # a start-up file in the decoy's own home
    sockets: Mapping[str, str]  # whose -> path
    abstract_socket: str = ""  # only where the network is private
    login_files: tuple[str, ...] = ()  # the person's real ones: opened for writing, never written
    masked: tuple[str, ...] = ()  # what must show nothing inside
    allowed: tuple[str, ...] = ()  # what may show in them nevertheless
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()  # a backend's own attacks: (name, argv); exit code 0 = reached

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Target:
        return cls(**{key: _frozen(value) for key, value in data.items()})


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def run_attacks(target: Target) -> dict[str, bool]:
    """Attack name -> whether it reached its victim. Those that cannot bite on this machine are left out."""
    results = {name: _reached(attack, target) for name, attack in ATTACKS.items() if _applies(name, target)}
    for name, argv in target.extra:
        results[name] = _runs(argv)
    return results


def _reached(attack: Callable[[Target], bool], target: Target) -> bool:
    try:
        return attack(target)
    except (OSError, ValueError):
        return False


def _applies(name: str, target: Target) -> bool:
    needs = {
        "connect_abstract_socket": bool(target.abstract_socket),
        "write_login_files": bool(target.login_files),
        "read_hidden_folders": bool(target.masked),
        "trace_process": not _tracing_is_off(),
        "read_memory": not _tracing_is_off(),
    }
    return needs.get(name, True)


def _tracing_is_off() -> bool:
    """Where the system lets nobody trace anything, no attack by tracing can bite, confined or not."""
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", encoding="ascii") as scope:
            return int(scope.read()) >= 2 and os.geteuid() != 0
    except (OSError, ValueError):
        return False


# Files -------------------------------------------------------------------------------------------------------------


def _holds_secret(path: str, target: Target) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # under a mistaken name it may be a pipe or a terminal
    with os.fdopen(descriptor, "rb") as file:
        return stat.S_ISREG(os.fstat(descriptor).st_mode) and target.secret.encode() in file.read(65536)


def read_workspace(target: Target) -> bool:
    return _holds_secret(target.workspace_file, target)


def read_credential(target: Target) -> bool:
    return _holds_secret(target.credential_file, target)


def read_private_temp(target: Target) -> bool:
    return _holds_secret(target.private_temp_file, target)


def write_decoy_login_file(target: Target) -> bool:
    """Put a line where the decoy's next login would run it."""
    descriptor = os.open(target.login_file, os.O_WRONLY | os.O_APPEND)  # no O_CREAT: inside, that would be another file
    try:
        return os.write(descriptor, b"# reached\n") > 0
    finally:
        os.close(descriptor)


def write_login_files(target: Target) -> bool:
    return any(_opens_for_writing(path) for path in target.login_files)


def _opens_for_writing(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            return os.access(path, os.W_OK)
        if not stat.S_ISREG(mode):
            return False
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def read_hidden_folders(target: Target) -> bool:
    return any(_shows_something(path, target.allowed) for path in target.masked)


def _shows_something(path: str, allowed: Iterable[str]) -> bool:
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            entries = [os.path.join(path, name) for name in os.listdir(path)]
            return any(not _leads_to(entry, allowed) for entry in entries)
        return stat.S_ISREG(mode) and _has_a_byte(path)
    except OSError:
        return False


def _leads_to(entry: str, allowed: Iterable[str]) -> bool:
    return any(path == entry or path.startswith(entry + "/") for path in allowed)


def _has_a_byte(path: str) -> bool:
    with open(path, "rb") as file:
        return bool(file.read(1))


# Processes ---------------------------------------------------------------------------------------------------------


def started_at(pid: int) -> int:
    """When the process started, in clock ticks since boot. Raises OSError when it is not to be seen."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        text = file.read()
    return int(text[text.rfind(b")") + 2 :].split()[19])


def _is_somebody_else(target: Target) -> bool:
    """Inside a pid namespace the victim's number may belong to one of our own."""
    try:
        return started_at(target.pid) != target.started
    except OSError:
        return False


def list_process(target: Target) -> bool:
    return str(target.pid) in os.listdir("/proc") and started_at(target.pid) == target.started


def _signal(target: Target, signum: int) -> bool:
    if _is_somebody_else(target):
        return False
    os.kill(target.pid, signum)
    return True


def signal_zero(target: Target) -> bool:
    return _signal(target, 0)


def signal_process(target: Target) -> bool:
    return _signal(target, signal.SIGCONT)  # a process that runs does not notice it


def trace_process(target: Target) -> bool:
    """Attach without stopping, stop, and let go: the victim goes on as it was."""
    if _is_somebody_else(target):
        return False
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    ptrace.restype = ctypes.c_long
    if ptrace(_PTRACE_SEIZE, target.pid, None, None) != 0:
        return False
    ptrace(_PTRACE_INTERRUPT, target.pid, None, None)
    os.waitpid(target.pid, _WALL)
    ptrace(_PTRACE_DETACH, target.pid, None, None)
    return True


def _process_file_holds_secret(target: Target, name: str) -> bool:
    return not _is_somebody_else(target) and _holds_secret(f"/proc/{target.pid}/{name}", target)


def read_environment(target: Target) -> bool:
    return _process_file_holds_secret(target, "environ")


def read_through_root(target: Target) -> bool:
    return _process_file_holds_secret(target, f"root{target.credential_file}")


def read_through_folder(target: Target) -> bool:
    return _process_file_holds_secret(target, f"cwd/{os.path.basename(target.credential_file)}")


def read_through_descriptor(target: Target) -> bool:
    return _process_file_holds_secret(target, f"fd/{target.open_file}")


def read_memory(target: Target) -> bool:
    if _is_somebody_else(target):
        return False
    with open(f"/proc/{target.pid}/maps", "rb") as maps:
        first = int(maps.readline().split(b"-")[0], 16)
    with open(f"/proc/{target.pid}/mem", "rb", buffering=0) as memory:
        memory.seek(first)
        return len(memory.read(16)) == 16


def enter_namespaces(target: Target) -> bool:
    """Join the victim's user namespace, where the same account is all-powerful, then its mounts."""
    if _is_somebody_else(target):
        return False
    namespaces = [os.open(f"/proc/{target.pid}/ns/{kind}", os.O_RDONLY) for kind in ("user", "mnt")]
    libc = ctypes.CDLL(None, use_errno=True)
    child = os.fork()
    if child == 0:  # it is never left again, so only a child goes in
        os._exit(0 if all(libc.setns(namespace, 0) == 0 for namespace in namespaces) else 1)
    for namespace in namespaces:
        os.close(namespace)
    return os.waitpid(child, 0)[1] == 0


# Sockets -----------------------------------------------------------------------------------------------------------


def connects(path: str) -> bool:
    """Whether something listens at `path`, which may be longer than a socket's address can be."""
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:
        return _connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    finally:
        os.close(folder)


def _connect(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_ONE_ATTACK_S)
        client.connect(address)
    return True


def connect_kernel_socket(target: Target) -> bool:
    return connects(target.sockets["kernel"])


def connect_worker_socket(target: Target) -> bool:
    return connects(target.sockets["worker"])


def connect_abstract_socket(target: Target) -> bool:
    return _connect("\0" + target.abstract_socket)


def _runs(argv: Sequence[str]) -> bool:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_ONE_ATTACK_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


ATTACKS: Mapping[str, Callable[[Target], bool]] = {
    attack.__name__: attack
    for attack in (
        read_workspace,
        read_credential,
        read_private_temp,
        read_hidden_folders,
        write_decoy_login_file,
        write_login_files,
        list_process,
        signal_zero,
        signal_process,
        trace_process,
        read_environment,
        read_through_root,
        read_through_folder,
        read_through_descriptor,
        read_memory,
        enter_namespaces,
        connect_kernel_socket,
        connect_worker_socket,
        connect_abstract_socket,
    )
}


def main(argv: Sequence[str]) -> int:
    """The attacker as a program: a target as JSON on stdin, its results as JSON on stdout."""
    results = run_attacks(Target.from_json(json.load(sys.stdin)))
    json.dump(results, sys.stdout)
    sys.stdout.flush()
    return 0
