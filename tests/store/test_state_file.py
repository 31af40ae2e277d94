"""`state.db` itself: created whole, private, migrated, and refused rather than overwritten when anything is wrong."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.errors import StateError
from openai4s_provisioner.orchestration.models import ExternalHandle
from openai4s_provisioner.orchestration.store import Store, StoreThread
from openai4s_provisioner.orchestration.store.sqlite import (
    MIGRATIONS,
    SCHEMA,
    VERSION,
    load_queries,
    migrate,
    statements,
)

from .conftest import open_store


def objects(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    found = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
    return [(name, " ".join(sql.split())) for name, sql in found]


def test_the_migrations_lead_to_exactly_the_schema() -> None:
    migrated, written = (sqlite3.connect(":memory:", isolation_level=None) for _ in range(2))
    migrate(migrated, Path("x"), MIGRATIONS)
    for statement in statements(SCHEMA):
        written.execute(statement)
    assert objects(migrated) == objects(written)
    assert len(objects(migrated)) > 10
    assert migrated.execute("PRAGMA user_version").fetchone() == (VERSION,)
    for connection in (migrated, written):
        connection.close()


def test_every_statement_is_valid_and_named_once(store: Store) -> None:
    with pytest.raises(ValueError, match="one name"):
        load_queries("-- name: a\nSELECT 1;\n-- name: a\nSELECT 2;\n")
    from openai4s_provisioner.orchestration.store.sqlite import QUERIES

    source = "".join(
        path.read_text() for path in Path(sys.modules[Store.__module__].__file__ or "").parent.glob("*.py")
    )
    for name, text in QUERIES.items():
        names = {word for word in text.replace("(", " ").replace(",", " ").replace(")", " ").split() if word[0] == ":"}
        values = {word.strip(":;"): None for word in names}
        store.db._connection.execute(f"EXPLAIN {text}", values).fetchall()
        assert f'"{name}"' in source, f"{name} is used by nobody"


def test_the_file_and_its_folder_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "state"
    old = os.umask(0)
    try:
        store = open_store(folder)
    finally:
        os.umask(old)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert {path.name for path in folder.iterdir()} <= {"state.db", "state.db-wal", "state.db-shm"}
    store.close()


def test_a_folder_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    open_store(tmp_path).close()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


@pytest.mark.parametrize(("local", "mode"), [(True, "wal"), (False, "delete")])
def test_wal_is_for_local_file_systems_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool, mode: str
) -> None:
    open_store(tmp_path).close()  # made as local: a folder may also move
    monkeypatch.setattr("openai4s_provisioner.orchestration.store.sqlite.is_local_folder", lambda folder: local)
    store = open_store(tmp_path)
    assert store.db._connection.execute("PRAGMA journal_mode").fetchone()[0] == mode
    assert store.db._connection.execute("PRAGMA synchronous").fetchone()[0] == 2
    assert store.situation("w0") is not None
    store.close()


# -- refused, with the path and the remedy, and left as it is ----------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(b"this is no database" * 1000)


def overwrite_pages(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096 : len(content) - 4096] = os.urandom(len(content) - 8192)
    path.write_bytes(content)


def cut_in_half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def foreign(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE recipe (name TEXT)")
    connection.close()


def newer(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()


def replaced_by_a_link(path: Path) -> None:
    path.rename(path.with_name("real.db"))
    path.symlink_to(path.with_name("real.db"))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (truncate, "damaged"),
        (garbage, "damaged"),
        (overwrite_pages, "damaged"),
        (cut_in_half, "damaged"),
        (foreign, "not a state file of ours"),
        (newer, f"has version {VERSION + 1}, and this program knows only {VERSION}"),
        (replaced_by_a_link, "not a plain file"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused_and_not_overwritten(
    tmp_path: Path, damage: Callable[[Path], None], told: str
) -> None:
    open_store(tmp_path).close()
    path = tmp_path / "state.db"
    damage(path)
    before = path.read_bytes()
    with pytest.raises(StateError) as caught:
        Store(tmp_path)
    assert told in str(caught.value)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before


def run_as_nobody(folder: Path) -> str:
    """Open the store as an account that owns nothing here; what it says."""
    code = (
        "import sys; from pathlib import Path; from openai4s_provisioner.orchestration.store import Store\n"
        "try: Store(Path(sys.argv[1]))\nexcept Exception as e: print(type(e).__name__, e)"
    )
    identity = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False, cwd="/", **identity
    )  # type: ignore[call-overload]
    return str(done.stdout)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second account")
def test_a_folder_that_cannot_be_written_is_refused_in_one_sentence(place: object) -> None:
    root = place.root  # type: ignore[attr-defined]
    root.chmod(0o755)
    told = run_as_nobody(root / "state")
    assert told.startswith(f"StateError {root / 'state'}: the state folder cannot be used (Permission denied).")
    (root / "theirs").mkdir(mode=0o755)
    assert "belongs to somebody else" in run_as_nobody(root / "theirs")


def test_a_plain_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(StateError, match="state folder cannot be used"):
        Store(tmp_path / "state")


def fill(store: Store) -> None:
    for _ in range(10_000):
        store.record("w0", "kept", "me", None, "x" * 4000, 2.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a mount")
def test_a_full_disk_loses_nothing(place: object) -> None:
    root = place.root / "small"  # type: ignore[attr-defined]
    root.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", root], check=False).returncode != 0:
        pytest.skip("no mounts here")
    try:
        store = open_store(root / "state")
        before = store.situation("w0")
        with pytest.raises(StateError, match="disk is full"):
            fill(store)
        assert store.situation("w0") == before
        store.close()
        again = open_store(root / "state")
        assert again.situation("w0") == before
        again.close()
    finally:
        subprocess.run(["umount", root], check=True)


# -- crashes -----------------------------------------------------------------------------------------------------------

_WRITE_UNTIL_KILLED = """
import itertools, sys
from pathlib import Path
from tests.store.conftest import new_session, open_store, DAEMON
store = open_store(Path(sys.argv[1]))
kill_at = int(sys.argv[2])
steps = itertools.count()
write = store.db.write
def counted(name, **values):
    if next(steps) == kill_at:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    return write(name, **values)
store.db.write = counted
for number in itertools.count(1):
    store.open_session(new_session(number, max_sessions=10**6), DAEMON, 1.0)
"""


@pytest.mark.parametrize("kill_at", range(7))
def test_a_process_killed_inside_a_commit_leaves_all_of_it_or_nothing(tmp_path: Path, kill_at: int) -> None:
    root = Path(__file__).parents[2]
    process = subprocess.run(
        [sys.executable, "-c", _WRITE_UNTIL_KILLED, str(tmp_path), str(6 + kill_at)], check=False, cwd=root
    )
    assert process.returncode == -signal.SIGKILL
    store = open_store(tmp_path)
    connection = store.db._connection
    counts = {
        table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        for table in ("workload", "allocation", "binding", "launch", "lease", "event")
    }
    assert len(set(counts.values())) == 1, counts
    assert counts["workload"] == (2 if kill_at < 6 else 3)
    store.close()


def test_processes_that_start_together_share_one_file(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from openai4s_provisioner.orchestration.store import Store, drivers\n"
        "sys.stdin.readline(); s = Store(Path(sys.argv[1])); drivers.register(s, sys.argv[2], 'h', 'b', 1, 0.0)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "s"), f"d{n}"], stdin=subprocess.PIPE, text=True)
        for n in range(4)
    ]
    for process in processes:  # all of them, before any is waited for
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    store = Store(tmp_path / "s")
    assert store.db._connection.execute("SELECT count(*) FROM daemon").fetchone()[0] == 4
    store.close()
    assert not [path.name for path in (tmp_path / "s").iterdir() if path.name.startswith(".state")]


# -- the thread --------------------------------------------------------------------------------------------------------


def test_the_thread_makes_no_file_before_its_first_use_and_hands_errors_over(tmp_path: Path) -> None:
    thread = StoreThread(tmp_path / "state")
    assert not thread.exists
    assert list(tmp_path.iterdir()) == []
    assert thread.submit(Store.active_sessions, "me").result(10) == 0
    assert thread.exists
    failed = thread.submit(Store.handle_known, "none", ExternalHandle("fake", "h"))
    assert isinstance(failed.exception(10), StateError)
    thread.close()
    thread.close()


@pytest.mark.anyio
async def test_a_question_that_fails_after_nobody_waits_for_it_is_not_complained_about(tmp_path: Path) -> None:
    """A command that ends because of a damaged state says so once, and prints no traceback of its own helpers."""
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context["message"]))
    thread, asked, goes_on = StoreThread(tmp_path / "state"), threading.Event(), threading.Event()

    def fails(store: Store) -> None:
        asked.set()
        goes_on.wait(10)
        raise StateError("damaged")

    waiting = asyncio.create_task(thread.run(fails))
    await asyncio.to_thread(asked.wait, 10)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    goes_on.set()
    await thread.run(Store.active_sessions, "me")
    del waiting
    gc.collect()
    thread.close()
    assert complaints == []
