"""Where this backend keeps what it must know of a token: who is submitting it, and which attempt it belongs to.

One symlink and one lock for each token below the state folder, both without content. The symlink leads to the attempt's
folder, in which everything else lies; when the control plane takes that away, the symlink dangles and is swept.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from openai4s_provisioner.orchestration.errors import CouldNotAsk
from openai4s_provisioner.orchestration.private_folder import prepare_folder

from . import parse, script
from .states import Exit

_LOCK = ".lock"
_VERDICT = "job.verdict"
_SMALL_BYTES = 4096


class Places:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def attempt_of(self, token: str) -> Path | None:
        """The folder of the attempt that the token belongs to, while there is one."""
        try:
            target = Path(os.readlink(self._folder / token))
        except OSError:
            return None
        return target if target.is_dir() else None

    def remember(self, token: str, attempt_dir: Path) -> None:
        """Raises OSError."""
        link, draft = self._folder / token, self._folder / f".{token}-{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        draft.symlink_to(attempt_dir)
        draft.rename(link)

    @contextlib.contextmanager
    def submitting(self, token: str) -> Iterator[int | None]:
        """Holds the token's lock, as a descriptor that a command may inherit; None when somebody else does.

        Whoever inherits it holds it as well, so a submission outlives its submitter's death in the eyes of others.
        """
        prepare_folder(self._folder.parent)
        prepare_folder(self._folder)
        descriptor = os.open(self._folder / f"{token}{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield descriptor if _locked(descriptor) else None
        finally:
            os.close(descriptor)

    def check_no_submission(self, token: str) -> None:
        """Raises CouldNotAsk while the token is being submitted."""
        try:
            descriptor = os.open(self._folder / f"{token}{_LOCK}", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            raise CouldNotAsk(f"{self._folder} cannot be read: {error.strerror}") from error
        try:
            if not _locked(descriptor):
                raise CouldNotAsk("it is being submitted at this moment")
        finally:
            os.close(descriptor)

    def sweep(self) -> None:
        """Forget the tokens whose attempts were taken away. Never an obstacle."""
        with contextlib.suppress(OSError):
            for entry in list(os.scandir(self._folder)):
                if entry.is_symlink() and not os.path.exists(entry.path):
                    for path in (entry.path, entry.path + _LOCK):
                        with contextlib.suppress(OSError):
                            os.unlink(path)

    def forget(self, token: str) -> None:
        """Leave nothing of a token behind, nor a folder that was made for it alone."""
        with contextlib.suppress(OSError):
            for path in (self._folder / token, self._folder / f"{token}{_LOCK}"):
                path.unlink(missing_ok=True)
            self._folder.rmdir()
            self._folder.parent.rmdir()

    def exit_of(self, token: str, number: int) -> Exit | None:
        """What this very job's script wrote down of its end."""
        recorded = parse.recorded_exit(self._small(token, script.RECORD))
        if recorded is None or recorded[1] not in (None, number):
            return None
        return recorded[0]

    def started_as(self, token: str) -> int | None:
        """The number of the job that ran under this token, as its own script wrote it down."""
        return parse.number_of(self._small(token, script.STARTED).partition(" ")[0])

    def was_requeued(self, token: str) -> bool:
        """Whether the scheduler started the same job more than once."""
        starts = [line.split() for line in self._small(token, script.STARTED).splitlines()]
        return any(len(each) == 2 and each[1] not in ("", "0") for each in starts)

    def verdict(self, token: str) -> str:
        """Why we gave it up, if we did."""
        return self._small(token, _VERDICT)

    def give_up(self, token: str, why: str) -> None:
        """Raises CouldNotAsk when it cannot be written down."""
        attempt = self.attempt_of(token)
        if attempt is None:
            return
        try:
            (attempt / f"{_VERDICT}.part").write_text(why[:_SMALL_BYTES], encoding="utf-8")
            os.replace(attempt / f"{_VERDICT}.part", attempt / _VERDICT)
        except OSError as error:
            raise CouldNotAsk(f"{attempt} cannot be written: {error.strerror}") from error

    def _small(self, token: str, name: str) -> str:
        attempt = self.attempt_of(token)
        if attempt is None:
            return ""
        try:
            with open(attempt / name, encoding="utf-8", errors="replace") as file:
                return file.read(_SMALL_BYTES)
        except OSError:
            return ""


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
