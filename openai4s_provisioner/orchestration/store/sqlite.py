"""Opening `state.db`: creation, permissions, journal mode, migrations, transactions, and statements by name.

A file that is damaged, unwritable, foreign or newer than this code is refused with its path and the remedy; it is
never taken for empty and never overwritten. One connection, used from one thread only.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import StateError
from ..private_folder import prepare_folder
from .filesystem import is_local_folder

FILE_NAME = "state.db"
APPLICATION_ID = 0x6F347370  # "o4sp": tells our file from any other SQLite file
_BUSY_TIMEOUT_S = 15.0


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def load_queries(text: str) -> dict[str, str]:
    """Statements by the name in their ``-- name: x`` line."""
    parts = re.split(r"^-- name: (\w+)\s*$", text, flags=re.MULTILINE)
    names, bodies = parts[1::2], parts[2::2]
    if len(set(names)) != len(names):
        raise ValueError("two statements have one name")
    return {name: body.strip() for name, body in zip(names, bodies, strict=True)}


def load_migrations() -> dict[int, str]:
    """The text of every migration by its number, from 1 without a gap."""
    found = {}
    for entry in resources.files(__package__).joinpath("migrations").iterdir():
        if matched := re.fullmatch(r"(\d{4})_\w+\.sql", entry.name):
            found[int(matched[1])] = entry.read_text(encoding="utf-8")
    if sorted(found) != list(range(1, len(found) + 1)):
        raise ValueError("the migrations are not numbered from 1 without a gap")
    return found


SCHEMA = _resource("schema.sql")
_FILES = ("queries.sql", "batches.sql", "tasks.sql", "overview.sql")
QUERIES = load_queries("".join(map(_resource, _FILES)))
MIGRATIONS = load_migrations()
VERSION = len(MIGRATIONS)


def statements(script: str) -> Iterator[str]:
    """Split a script; a trigger's inner semicolons do not end it. (`executescript` would commit on its own.)"""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        yield pending


class Database:
    """One open `state.db`. Everything that goes wrong with the file itself is a StateError."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / FILE_NAME
        with _explained(self.path):
            prepare_folder(state_dir)
            if not self.path.exists():
                _publish_new(self.path)
            _check_file(self.path)
            self._connection = _connect(self.path)
        try:
            with _explained(self.path):
                self._settle(is_local_folder(state_dir))
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside is one commit, or nothing. Takes the write lock at once, so that reads inside hold."""
        with _explained(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._roll_back()
                raise
            try:
                self._connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Reads inside see one moment."""
        with _explained(self.path):
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._roll_back()

    def rows(self, name: str, **values: Any) -> list[sqlite3.Row]:
        with _explained(self.path):
            return self._connection.execute(QUERIES[name], values).fetchall()

    def row(self, name: str, **values: Any) -> sqlite3.Row | None:
        found = self.rows(name, **values)
        return found[0] if found else None

    def write(self, name: str, **values: Any) -> int:
        """Run one statement; the number of rows it changed."""
        with _explained(self.path):
            return self._connection.execute(QUERIES[name], values).rowcount

    def changes_by_others(self) -> int:
        """A number that is another one once another process has written to the file. Reads no page of it."""
        with _explained(self.path):
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
            return int(version)

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _settle(self, local: bool) -> None:
        connection = self._connection
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            raise StateError(
                f"{self.path}: this is not a state file of ours. Move it away, or name another state folder."
            )
        (journal,) = connection.execute(f"PRAGMA journal_mode = {'WAL' if local else 'DELETE'}").fetchone()
        if journal == "wal" and not local:
            raise StateError(
                f"{self.path}: this file is open elsewhere in a mode that network folders cannot carry. "
                "Stop the other server."
            )
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        migrate(connection, self.path, MIGRATIONS)
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise StateError(_damaged(self.path, verdict))


def migrate(connection: sqlite3.Connection, path: Path, migrations: Mapping[int, str]) -> None:
    """Bring an existing file forward, one commit per step. A newer file is refused."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(migrations):
        raise StateError(
            f"{path}: this file has version {version}, and this program knows only {len(migrations)}. "
            "Upgrade the program, or name another state folder."
        )
    for number in range(version + 1, len(migrations) + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            (now,) = connection.execute("PRAGMA user_version").fetchone()
            if now < number:  # another process may have been first
                for statement in statements(migrations[number]):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _publish_new(path: Path) -> None:
    """Make a whole, empty state file beside `path` and link it there: a partial one is never seen under the name."""
    draft = path.with_name(f".{FILE_NAME}-{os.getpid()}-{secrets.token_hex(4)}")
    os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    try:
        with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            migrate(connection, path, MIGRATIONS)
        with contextlib.suppress(FileExistsError):  # another process was first: its file is the one
            os.link(draft, path)
    finally:
        draft.unlink()
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_file(path: Path) -> None:
    about = path.stat(follow_symlinks=False)
    if not stat.S_ISREG(about.st_mode):
        raise StateError(f"{path}: this is not a plain file. Move it away, or name another state folder.")
    if about.st_size == 0:  # ours is never published empty
        raise StateError(_damaged(path, "it is empty"))
    if stat.S_IMODE(about.st_mode) & 0o077:
        path.chmod(0o600)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{_quoted(path)}?mode=rw", uri=True, isolation_level=None, timeout=_BUSY_TIMEOUT_S
    )
    connection.row_factory = sqlite3.Row
    return connection


def _quoted(path: Path) -> str:
    return str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _damaged(path: Path, what: str) -> str:
    return (
        f"{path}: the state file is damaged ({what}). It was left as it is. "
        "Restore it from a copy, or move it away after you have stopped all sessions."
    )


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system say about the file into one sentence with the remedy."""
    try:
        yield
    except sqlite3.IntegrityError:
        raise  # an invariant of the schema: the caller's fault, not the file's
    except sqlite3.DatabaseError as error:
        raise StateError(_remedy(path, error)) from error
    except OSError as error:
        raise StateError(
            f"{path.parent}: the state folder cannot be used ({error.strerror or error}). "
            "Make it a folder that you can write, or name another one."
        ) from error


def _remedy(path: Path, error: sqlite3.DatabaseError) -> str:
    code = getattr(error, "sqlite_errorcode", None) or 0
    if code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _damaged(path, str(error))
    if code & 0xFF == sqlite3.SQLITE_FULL:
        return f"{path}: the disk is full. Nothing was changed. Free some space there."
    if code & 0xFF in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return f"{path}: the state file cannot be written ({error}). Make it and its folder writable for you."
    if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return (
            f"{path}: the state file has been locked for {_BUSY_TIMEOUT_S:g} s ({error}). End whatever holds it open."
        )
    return f"{path}: the state file cannot be used ({error}). Look at the disk it lies on."
