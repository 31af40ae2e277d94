"""The one place that runs the scheduler's commands: argument lists, a small environment, a deadline for each call.

A command that did not answer with success raises an error whose type says whether the scheduler refused, could not be
reached, or was not even asked. It interprets no answer, starts no shell, and refuses to carry anything that looks like
a credential. It blocks, so it is called in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import wording

LONGEST_OUTPUT_BYTES = 32 * 1024 * 1024
_KEPT = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "SLURM_CONF", "USER")
_PATH = "/usr/local/bin:/usr/bin:/bin"
_CANNOT_BE_RUN = frozenset({errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR})
_CREDENTIAL_NAME = re.compile(
    r"(?i)(?:^|[-_,=])(?:[a-z0-9_]*(?:secret|passw(?:or)?d|passphrase|credential|api_?key|private_?key|access_?key)"
    r"[a-z0-9_]*|[a-z0-9_]*_?token)\s*="
)
_CREDENTIAL_VALUE = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{20,}|\bhf_[A-Za-z0-9]{20,}"
    r"|\bsk-[A-Za-z0-9_-]{20,}|\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\."
)


class BrokerError(Exception):
    """A command did not answer with success. Carries what it printed, for a person's eyes."""

    def __init__(self, what: str, stdout: str = "", stderr: str = "", returncode: int | None = None) -> None:
        super().__init__(what)
        self.stdout = stdout
        self.stderr = stderr
        self.returncode = returncode


class Absent(BrokerError):
    """There is no such command here, or no configuration for it: nothing was sent."""


class NotStarted(BrokerError):
    """This machine could not start the command just now, as for want of memory: nothing was sent."""


class TimedOut(BrokerError):
    """No answer within the deadline; whatever was asked may have been done."""


class Unreachable(BrokerError):
    """The controller, or what authenticates us to it, cannot be reached now."""


class Denied(BrokerError):
    """It answered that this account may not do that."""


class Refused(BrokerError):
    """It answered no, for a reason of its own."""


class Failed(BrokerError):
    """It failed in a way that is not known here: what was asked may have been done."""


@dataclass(frozen=True)
class Answer:
    stdout: str
    stderr: str


_ERRORS: Mapping[wording.Complaint, type[BrokerError]] = {
    wording.Complaint.NOT_ASKED: Absent,
    wording.Complaint.UNREACHABLE: Unreachable,
    wording.Complaint.DENIED: Denied,
    wording.Complaint.REFUSED: Refused,
    wording.Complaint.UNKNOWN: Failed,
}


class Broker:
    """`commands`: where a command's program is, for those that are not simply found on the PATH."""

    def __init__(self, deadline_s: float, slurm_conf: str = "", commands: Mapping[str, str] | None = None) -> None:
        self._deadline_s = deadline_s
        self._slurm_conf = slurm_conf
        self._commands = dict(commands or {})

    def run(self, argv: Sequence[str], keep_fds: Sequence[int] = ()) -> Answer:
        """What the command printed. Raises a BrokerError; `keep_fds` stay open in it."""
        refuse_credentials(argv)
        environment = self.environment()
        program = self._program(argv[0], environment["PATH"])
        conf = environment.get("SLURM_CONF", "")
        if conf and not os.access(conf, os.R_OK):  # the commands would try again for a minute
            raise Absent(f"the configuration {conf} cannot be read on this machine")
        try:
            process = subprocess.Popen(
                [program, *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env=environment,
                pass_fds=tuple(keep_fds),
                start_new_session=True,  # so that all of it can be ended at once
            )
        except OSError as error:
            kind = Absent if error.errno in _CANNOT_BE_RUN else NotStarted
            raise kind(f"{program} cannot be run: {error.strerror}") from error
        with process:
            return self._answer(argv[0], process)

    def environment(self) -> dict[str, str]:
        """Nothing of the server's environment but what every program needs."""
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        kept |= {name: value for name, value in os.environ.items() if name.startswith("LC_")}
        kept.setdefault("PATH", _PATH)
        kept["SLURM_TIME_FORMAT"] = "%s"  # seconds since the Unix epoch, whatever the time zone
        if self._slurm_conf:
            kept["SLURM_CONF"] = self._slurm_conf
        return kept

    def _program(self, name: str, path: str) -> str:
        wanted = self._commands.get(name, name)
        found = shutil.which(wanted, path=path)
        if found is None:
            raise Absent(f"the command {wanted} is not on this machine")
        return found

    def _answer(self, name: str, process: subprocess.Popen[bytes]) -> Answer:
        deadline = time.monotonic() + self._deadline_s
        try:
            output, is_whole = _read(process, deadline)
            returncode = process.wait(max(0.0, deadline - time.monotonic())) if is_whole else None
        except subprocess.TimeoutExpired:
            returncode = None
        if returncode is None:
            _end(process)
            size = sum(len(each) for each in output)
            if size > LONGEST_OUTPUT_BYTES:
                raise Failed(f"{name} printed more than {LONGEST_OUTPUT_BYTES} bytes")
            raise TimedOut(f"{name} did not answer within {self._deadline_s:g} s", _text(output[0]), _text(output[1]))
        stdout, stderr = _text(output[0]), _text(output[1])
        if returncode == 0:
            return Answer(stdout, stderr)
        complaint = wording.complaint_of(stderr + "\n" + stdout)
        last = wording.last_line(stderr) or wording.last_line(stdout) or f"exit code {returncode}"
        raise _ERRORS[complaint](f"{name}: {last}{wording.hint_of(last)}", stdout, stderr, returncode)


def _read(process: subprocess.Popen[bytes], deadline: float) -> tuple[list[bytes], bool]:
    """(stdout, stderr), and whether both ended in time and within the bound."""
    assert process.stdout is not None
    assert process.stderr is not None
    output = [b"", b""]
    with selectors.DefaultSelector() as selector:
        for index, pipe in enumerate((process.stdout, process.stderr)):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ, index)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0 or sum(len(each) for each in output) > LONGEST_OUTPUT_BYTES:
                return output, False
            for key, _ in selector.select(min(left, 3600)):
                data = os.read(key.fd, 1 << 16)
                output[key.data] += data
                if not data:
                    selector.unregister(key.fileobj)
    return output, True


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def refuse_credentials(argv: Sequence[str]) -> None:
    """What is on a command line is seen by everybody, and kept by accounting. Raises Refused without showing it."""
    for argument in argv:
        if _CREDENTIAL_NAME.search(argument) or _CREDENTIAL_VALUE.search(argument):
            name = re.split(r"[=\s]", argument, maxsplit=1)[0][:40]
            raise Refused(f"the argument {name}=... looks like a credential, which has no place on a command line")
