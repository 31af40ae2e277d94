"""An ipykernel in its sandbox, started by a real worker process from the zipapp, used through the tunnel."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.asynchronous.client import AsyncKernelClient

from openai4s_provisioner.gateway.desk import LinkState
from openai4s_provisioner.gateway.kernel_check import KernelSilent, kernel_answers
from openai4s_provisioner.gateway.limits import Limits
from openai4s_provisioner.gateway.worker_gateway import Endpoint, WorkerGateway
from openai4s_provisioner.orchestration.bundle import write_worker_zipapp
from openai4s_provisioner.orchestration.models import ReadyCheck, Registration
from openai4s_provisioner.sandbox.policy import session_spec
from openai4s_provisioner.testing.front_desks import DeskThatAdmitsOnce, ObserverThatRemembers
from openai4s_provisioner.worker.exit_codes import ExitCode
from openai4s_provisioner.worker.scratch import scratch_path

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")

KEY = "7c0ffee"
SECRETS = ("SECRET-CREDENTIAL", KEY, "SECRET-OF-THE-KERNEL")


def pythons() -> list[str]:
    """This interpreter and, where there is one that runs, the oldest that a node may have."""
    oldest = os.environ.get("OPENAI4S_TEST_PYTHON39") or shutil.which("python3.9")
    if oldest and subprocess.run([oldest, "-c", ""], capture_output=True, check=False).returncode == 0:
        return [sys.executable, oldest]
    return [sys.executable]


WaitUntil = Callable[..., Any]


class Session:
    """Gateway, one worker process, one kernel."""

    def __init__(self, root: Path, python: str, parent: Sequence[str]) -> None:
        self.root = root
        self.observer = ObserverThatRemembers()
        self.gateway = self._make_gateway(root)
        self.gateway.start()
        self.workspace = root / "ws"
        self.attempt_dir = root / "attempt"
        for folder in (self.workspace, self.attempt_dir):
            folder.mkdir(mode=0o700)
        (self.workspace / ".nonce").write_text("n0nce")
        self._write_attempt()
        argv = [*parent, python, "-I", str(write_worker_zipapp(root)), "worker", str(self.attempt_dir), "--rank", "0"]
        self.worker = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
        self.endpoint = self.gateway.open_endpoint("alloc", "first", "k")

    def launch(self, launch_id: str) -> dict[str, Any]:
        return {
            "launch_id": launch_id,
            "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "env": {"PATH": os.environ["PATH"], "HF_TOKEN": SECRETS[2]},
            "cwd": str(self.workspace),
            "key": KEY,
            "signature_scheme": "hmac-sha256",
            "kernel_name": "python3",
        }

    def connection_info(self, endpoint: Endpoint | None = None) -> dict[str, Any]:
        to = endpoint or self.endpoint
        ports = {f"{channel}_port": port for channel, port in to.ports.items()}
        return {"transport": "ipc", "ip": to.ip, "key": KEY, "signature_scheme": "hmac-sha256", **ports}

    def send(self, **message: Any) -> None:
        assert self.gateway.send("alloc", 0, message)

    def told(self, kind: str, launch_id: str = "first", deadline_s: float = 30) -> dict[str, Any]:
        def is_it(told: Any) -> bool:
            named = told.what == "message" and told.detail["type"] == kind
            return bool(named and told.detail.get("launch_id", launch_id) == launch_id)

        return dict(self.observer.wait_for(is_it, deadline_s).detail)

    def log(self) -> str:
        return (self.attempt_dir / "worker-0.log").read_text()

    def close(self) -> None:
        if self.worker.poll() is None:
            self.worker.terminate()
            self.worker.wait(20)
        self.gateway.stop()

    def _make_gateway(self, root: Path) -> WorkerGateway:
        desk = DeskThatAdmitsOnce(**{SECRETS[0]: Registration("w", "alloc", 1, 0)})
        return WorkerGateway(root / "gw", desk, self.observer, Limits(reconnect_s=1))

    def _write_attempt(self) -> None:
        home_source = self.root / "session-home"
        home_source.mkdir(mode=0o700)
        spec = session_spec(
            workspace=str(self.workspace),
            home=str(self.root / "home"),
            home_source=str(home_source),
            state_paths=[str(self.attempt_dir), str(self.root / "gw")],
            jupyter_paths=[],
            prefixes=[sys.prefix],
        )
        attempt = {
            "version": 1,
            "workload_id": "w",
            "allocation_id": "alloc",
            "epoch": 1,
            "rank": 0,
            "ranks": 1,
            "credential": SECRETS[0],
            "addresses": ["unix:/nowhere/gw.sock", self.gateway.address],
            "certificate_sha256": None,
            "workspace": {"path": str(self.workspace), "nonce_name": ".nonce"},
            "sandbox": spec.to_json(),
            "launch": self.launch("first"),
            "server_grace_s": 1.5,
        }
        path = self.attempt_dir / "rank-0.json"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as stream:
            json.dump(attempt, stream)


@pytest.fixture
def session(place: Any) -> Iterator[Callable[..., Session]]:
    opened: list[Session] = []

    def open_one(python: str = sys.executable, parent: Sequence[str] = ()) -> Session:
        opened.append(Session(place.root, python, parent))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


class Notebook:
    """A client that runs cells and keeps their output."""

    def __init__(self, info: Any) -> None:
        self._client = AsyncKernelClient()
        self._client.load_connection_info(info)

    async def __aenter__(self) -> Notebook:
        self._client.start_channels(hb=False)
        await self._client.wait_for_ready(timeout=30)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client.stop_channels()

    def start(self, code: str) -> str:
        return str(self._client.execute(code))

    async def finish(self, request: str, timeout_s: float = 60) -> tuple[str, list[str]]:
        """Status of the reply, and the text of every stream output, once the kernel is idle again."""
        texts: list[str] = []
        async with asyncio.timeout(timeout_s):
            while True:
                message = await self._client.get_iopub_msg(timeout=timeout_s)
                if message["parent_header"].get("msg_id") != request:
                    continue
                content = message["content"]
                if message["msg_type"] == "stream":
                    texts.append(content["text"])
                if content.get("execution_state") == "idle":
                    break
            while (reply := await self._client.get_shell_msg())["parent_header"].get("msg_id") != request:
                pass
        return reply["content"]["status"], texts

    async def run(self, code: str) -> tuple[str, str]:
        status, texts = await self.finish(self.start(code))
        return status, "".join(texts)

    async def output(self, request: str, wanted: str, timeout_s: float = 20) -> None:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await self._client.get_iopub_msg(timeout=timeout_s)
                if message["msg_type"] == "stream" and wanted in message["content"]["text"]:
                    return


def check(session: Session, endpoint: Endpoint | None = None, how: ReadyCheck = ReadyCheck.EXECUTE) -> None:
    asyncio.run(kernel_answers(session.connection_info(endpoint), how, 30))


@pytest.mark.parametrize("python", pythons())
def test_a_kernel_starts_proves_itself_and_answers(session: Callable[..., Session], python: str) -> None:
    opened = session(python)
    check(opened)
    isolation = opened.told("isolation")
    assert isolation["ok"], isolation
    assert set(isolation["attacks"].values()) == {"stopped"}
    assert opened.told("workspace")["nonce"] == "n0nce"
    assert opened.told("kernel_started")["pid"] > 0
    assert "cannot be reached at unix:/nowhere/gw.sock" in opened.log()


def test_cells_run_big_output_arrives_whole_and_an_interrupt_stops_a_cell(session: Callable[..., Session]) -> None:
    opened = session()

    async def use() -> None:
        async with Notebook(opened.connection_info()) as notebook:
            assert await notebook.run("x = 20; print(x + 1)") == ("ok", "21\n")
            big = await notebook.run("for i in range(20): print(str(i % 10) * 1_000_000)")
            assert big == ("ok", "".join(str(i % 10) * 1_000_000 + "\n" for i in range(20)))
            for code in (
                "print('started', flush=True); import time; time.sleep(1000)",
                "print('started', flush=True)\nwhile True: pass",
                "print('started', flush=True); import os; os.system('sleep 1000'); raise KeyboardInterrupt",
            ):
                request = notebook.start(code)
                await notebook.output(request, "started")
                await asyncio.sleep(0.2)  # the cell is inside its sleep, as far as anyone can tell from outside
                opened.send(type="signal", launch_id="first", signum=signal.SIGINT)
                status, _ = await notebook.finish(request, 20)
                assert status == "error"
            assert await notebook.run("print(x)") == ("ok", "20\n")

    asyncio.run(use())


def test_a_restart_is_a_new_sandbox_in_the_same_worker(session: Callable[..., Session]) -> None:
    opened = session()
    check(opened)
    opened.send(type="stop_kernel", launch_id="first", grace_s=0)
    assert opened.told("kernel_exited")["signal"] == signal.SIGKILL
    opened.gateway.close_endpoint("first")
    opened.send(type="launch", launch=opened.launch("second"))
    check(opened, opened.gateway.open_endpoint("alloc", "second", "k"))
    assert opened.told("isolation", "second")["ok"]
    assert opened.worker.poll() is None


def test_told_to_end_it_leaves_nothing(session: Callable[..., Session], place: Any, no_process_left: Any) -> None:
    opened = session()
    check(opened)
    opened.send(type="end", reason="the user asked")
    assert opened.worker.wait(20) == ExitCode.ENDED
    opened.told("ended")
    no_process_left()
    assert not os.path.exists(scratch_path("alloc", 0))
    assert sorted(os.listdir(opened.attempt_dir)) == ["worker-0.log"]


def test_sigterm_is_a_graceful_end(session: Callable[..., Session]) -> None:
    opened = session()
    check(opened)
    opened.worker.terminate()
    assert opened.worker.wait(20) == ExitCode.ENDED
    assert opened.told("ended")["reason"] == "signal SIGTERM"


def test_a_worker_whose_parent_is_killed_ends_gracefully(session: Callable[..., Session], no_process_left: Any) -> None:
    opened = session(parent=[sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"])
    check(opened)
    opened.worker.kill()
    assert opened.told("ended")["reason"] == "signal SIGTERM"
    no_process_left()


def test_a_killed_worker_takes_its_kernel_along_and_its_link_is_gone(
    session: Callable[..., Session], no_process_left: Any
) -> None:
    opened = session()
    check(opened)
    opened.worker.kill()
    opened.worker.wait(10)
    opened.observer.wait_for(lambda told: told.detail == LinkState.GONE)
    no_process_left()
    shutil.rmtree(scratch_path("alloc", 0))


def test_a_worker_whose_server_is_gone_ends_with_its_kernel(
    session: Callable[..., Session], no_process_left: Any
) -> None:
    opened = session()
    check(opened)
    opened.gateway.stop()
    assert opened.worker.wait(30) == ExitCode.SERVER_GONE
    no_process_left()


def test_no_secret_shows_in_arguments_environment_log_or_files(session: Callable[..., Session]) -> None:
    opened = session()
    check(opened)
    pids = [str(opened.worker.pid), *_descendants(opened.worker.pid)]
    assert len(pids) >= 3
    shown = opened.log()
    for pid in pids:
        shown += _read(f"/proc/{pid}/cmdline")
    if os.geteuid() == 0:
        shown += _read(f"/proc/{opened.worker.pid}/environ")
    else:
        with pytest.raises(PermissionError):
            _read(f"/proc/{opened.worker.pid}/environ")
    shown += "".join(path.read_text() for path in opened.attempt_dir.iterdir())
    assert [secret for secret in SECRETS if secret in shown] == []


def test_a_kernel_that_never_answers_is_reported_in_time(session: Callable[..., Session], tmp_path: Path) -> None:
    info = {"transport": "ipc", "ip": str(tmp_path / "k"), "shell_port": 1, "key": KEY}
    descriptors = len(os.listdir("/proc/self/fd"))
    started = time.monotonic()
    with pytest.raises(KernelSilent, match="kernel_info_request"):
        asyncio.run(kernel_answers(info, ReadyCheck.KERNEL_INFO, 0.5))
    assert time.monotonic() - started < 5
    assert len(os.listdir("/proc/self/fd")) == descriptors


def _descendants(pid: int) -> list[str]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [one for child in children for one in (child, *_descendants(int(child)))]


def _read(path: str) -> str:
    return Path(path).read_bytes().decode(errors="replace")
