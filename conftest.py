"""Fixtures every test shares: private folders, a throw-away account, waiting with a deadline, and the leak check.

No test touches the real home folder: `place` is used by all of them. Paths are short because a unix socket's path
ends at 107 bytes. Nothing here sleeps for synchronisation; `wait_until` polls a condition and names it when it fails.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from checks.parts.leftovers import described, processes_of
from checks.parts.place import FOREIGN_SETTINGS, REPOSITORY, Place, make_place

RUN_MARK = "OPENAI4S_TEST_RUN"

WaitUntil = Callable[..., Any]


@pytest.fixture(scope="session", autouse=True)
def run_mark() -> Iterator[str]:
    """Marks every process of this run in its environment, so that what is left over can be told from strangers."""
    mark = f"o4s-{os.getpid()}-{int(time.time())}"
    os.environ[RUN_MARK] = mark
    yield mark
    os.environ.pop(RUN_MARK, None)


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Private HOME, Jupyter, XDG and temporary folders for one test; removed at its end."""
    tmp_path_factory.getbasetemp()  # made now: below this test's TMPDIR it would be gone for the next one
    root = Path(tempfile.mkdtemp(prefix="o4s-", dir="/tmp"))
    made = make_place(root)
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    for name in FOREIGN_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield made
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """`figure(what, value)`: a measured number, which a check that runs this test prints."""
    return lambda what, value: request.node.user_properties.append((what, str(value)))


@pytest.fixture(scope="session")
def wait_until() -> WaitUntil:
    """`wait_until(condition, what, deadline_s=10)`: the condition's first true value, or a failure naming `what`."""

    def wait(condition: Callable[[], Any], what: str, deadline_s: float = 10.0) -> Any:
        deadline = time.monotonic() + deadline_s
        while True:
            if value := condition():
                return value
            if time.monotonic() > deadline:
                pytest.fail(f"still not true after {deadline_s:g} s: {what}")
            time.sleep(0.02)

    return wait


@dataclass(frozen=True)
class OrdinaryUser:
    """An account without privileges, and how to run something as it."""

    name: str
    uid: int
    gid: int
    home: Path
    is_throw_away: bool

    def popen(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start `argv` as this account, in its home, with a small environment plus `env`."""
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "USER": self.name}
        environment |= {"HOME": str(self.home), RUN_MARK: os.environ.get(RUN_MARK, "")} | dict(env or {})
        if self.is_throw_away:
            options |= {"user": self.uid, "group": self.gid, "extra_groups": []}
        options.setdefault("cwd", self.home)
        return subprocess.Popen(argv, env=environment, **options)

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 120, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run `argv` to its end as this account; stdout and stderr as text."""
        process = self.popen(argv, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(argv, process.returncode, out, err)


_ACCOUNTS = pytest.StashKey[list[str]]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Each process of pytest-xdist gets an account before the first test, and keeps it until the last has ended.

    Whoever makes or removes one replaces /etc/shadow, which is hidden from the sessions that run meanwhile.
    """
    if os.getuid() == 0:
        name = _make_account()
        node.config.stash.setdefault(_ACCOUNTS, []).append(name)
        node.workerinput["account"] = name


def pytest_unconfigure(config: pytest.Config) -> None:
    for name in config.stash.get(_ACCOUNTS, []):
        _remove_account(name)


@pytest.fixture(scope="session")
def ordinary_user(request: pytest.FixtureRequest) -> Iterator[OrdinaryUser]:
    """As root a throw-away account, removed with all its processes at the end; otherwise the current account."""
    if os.getuid() != 0:
        entry = pwd.getpwuid(os.getuid())
        yield OrdinaryUser(entry.pw_name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir), is_throw_away=False)
        return
    given = getattr(request.config, "workerinput", {}).get("account")
    name = given or _make_account()
    entry = pwd.getpwnam(name)
    user = OrdinaryUser(name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir), is_throw_away=True)
    try:
        user.home.mkdir(mode=0o700)
        os.chown(user.home, user.uid, user.gid)
        if user.run([sys.executable, "-c", "import openai4s_provisioner"]).returncode != 0:
            pytest.skip(
                f"an ordinary user cannot read {REPOSITORY} or run {sys.executable}: "
                "move the checkout out of a private folder"
            )
        yield user
    finally:
        if not given:
            _remove_account(name)


def _make_account() -> str:
    name = f"o4stest{secrets.token_hex(4)}"
    base = Path(tempfile.mkdtemp(prefix="o4su-", dir="/tmp"))
    base.chmod(0o711)
    subprocess.run(["useradd", "-M", "-d", str(base / "home"), "-s", "/bin/sh", name], check=True)
    return name


def _remove_account(name: str) -> None:
    entry = pwd.getpwnam(name)
    _end_processes_of(entry.pw_uid)
    subprocess.run(["userdel", name], check=False)
    shutil.rmtree(Path(entry.pw_dir).parent, ignore_errors=True)


def _end_processes_of(uid: int) -> None:
    """End what the throw-away account still runs, by process id."""
    for process in psutil.process_iter(["uids"]):
        if process.info["uids"] and process.info["uids"].real == uid:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)


@pytest.fixture
def no_process_left(place: Place, wait_until: WaitUntil) -> Iterator[Callable[..., None]]:
    """`no_process_left(deadline_s=15)`: waits until no process names this test's place; also checked at the end."""

    def check(deadline_s: float = 15.0) -> None:
        try:
            wait_until(lambda: not processes_of(str(place.root)), "no process of this test is left", deadline_s)
        except pytest.fail.Exception:
            pytest.fail(f"processes left after {deadline_s:g} s: {described(processes_of(str(place.root)))}")

    yield check
    check()


@pytest.fixture(scope="session", autouse=True)
def nothing_outlives_the_run(run_mark: str) -> Iterator[None]:
    """The run as a whole leaves no process behind, whatever a test forgot."""
    yield
    deadline = time.monotonic() + 20
    while (left := processes_of(run_mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        shown = described(left)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        pytest.fail(f"these processes outlived the tests and were ended: {shown}")
