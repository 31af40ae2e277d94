"""A real kernel in a real sandbox, as its worker sees it: started, reached, signalled, ended, and nothing left."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from openai4s_provisioner.sandbox import bubblewrap
from openai4s_provisioner.worker.inner import CHANNELS

_NEVER_DIES_WITH_PARENT = tuple(option for option in bubblewrap._NAMESPACES if option != "--die-with-parent")
SLEEPER = ("/bin/sh", "-c", "echo started; exec sleep 1000")


@pytest.fixture
def client(node: Any) -> Iterator[Any]:
    clients = []

    def connect(kernel: Any) -> BlockingKernelClient:
        node.run_until(lambda: os.path.exists(kernel.socket_path("hb")), "the kernel's sockets")
        made = BlockingKernelClient()
        ports = {f"{name}_port": port for port, name in enumerate(CHANNELS, start=1)}
        info: Any = {"transport": "ipc", "ip": kernel.socket_path("shell").removesuffix("-1"), "key": node.key, **ports}
        made.load_connection_info(info)
        made.start_channels()
        clients.append(made)
        made.wait_for_ready(timeout=30)
        return made

    yield connect
    for made in clients:
        made.stop_channels()


def value_of(client: BlockingKernelClient, code: str, timeout: float = 30) -> str:
    """What the cell printed, or the name of what it raised."""
    printed = ""

    def hook(message: dict[str, Any]) -> None:
        nonlocal printed
        printed += str(message["content"].get("text", ""))

    reply = client.execute_interactive(code, timeout=timeout, output_hook=hook)
    return printed.strip() if reply["content"]["status"] == "ok" else str(reply["content"]["ename"])


def tree_of(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def sandbox_of(kernel: Any) -> int:
    return int(kernel._process.pid)


def inner_of(kernel: Any) -> psutil.Process:
    return next(p for p in tree_of(sandbox_of(kernel)) if "inner" in p.cmdline() and p.name() != "bwrap")


def gone(processes: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


def test_a_kernel_answers_over_its_unix_sockets(node: Any, client: Any) -> None:
    kernel = node.start(node.launch())
    isolation = node.wait_for("isolation")
    assert isolation["ok"], isolation
    assert set(isolation["attacks"].values()) == {"stopped"}
    assert isolation["launch_id"] == "launch-0"
    started = node.wait_for("kernel_started")
    assert psutil.Process(started["pid"]).cmdline()[1:3] == ["-m", "ipykernel_launcher"]
    talk = client(kernel)
    assert value_of(talk, "print(6 * 7)") == "42"
    assert value_of(talk, "import os; print(os.getcwd())") == str(node.root / "work")
    assert value_of(talk, "print(os.environ['HOME'])") == str(node.root / "home")
    assert value_of(talk, "open('made', 'w').write('x'); print(sorted(os.listdir('..')))") == "['home', 'work']"
    assert (node.root / "work" / "made").exists()
    assert kernel.kernel_pid == started["pid"]


def test_no_argument_or_environment_of_ours_holds_a_secret(node: Any) -> None:
    kernel = node.start(node.launch())
    started = node.wait_for("kernel_started")
    for process in tree_of(sandbox_of(kernel)):
        shown = " ".join(process.cmdline()) + str(process.environ() if process.pid != started["pid"] else "")
        assert "only-for-the-kernel" not in shown
        assert node.key not in shown


def test_the_kernels_environment_is_large_and_arrives_whole(node: Any, client: Any) -> None:
    kernel = node.start(node.launch(BIG="x" * 100_000, JPY_PARENT_PID="1", JUPYTER_TOKEN="t", TMPDIR="/nowhere"))
    talk = client(kernel)
    assert value_of(talk, "import os; print(len(os.environ['BIG']))") == "100000"
    names = "'JPY_PARENT_PID', 'JUPYTER_TOKEN', 'TMPDIR'"
    assert value_of(talk, f"print([n for n in ({names}) if n in os.environ])") == "[]"


def test_interrupts_reach_a_sleep_a_loop_and_a_child(node: Any, client: Any) -> None:
    kernel = node.start(node.launch())
    talk = client(kernel)
    for code in (
        "import time; time.sleep(1000)",
        "while True: pass",
        "import os, time; os.system('sleep 1000'); time.sleep(1000)",
    ):
        message_id = begin(talk, code)
        assert interrupted(kernel, talk, message_id) == "KeyboardInterrupt"


def begin(talk: BlockingKernelClient, code: str) -> str:
    """Start a cell and wait until it runs: a kernel forgets a request that is interrupted any earlier."""
    message_id = talk.execute(f"print('ready', flush=True)\n{code}", stop_on_error=False)
    while talk.get_iopub_msg(timeout=30)["content"].get("text") != "ready\n":
        pass
    return str(message_id)


def interrupted(kernel: Any, talk: BlockingKernelClient, message_id: str) -> str:
    """What the cell raised. `os.system` keeps the first interrupt for its child, so there may be a second."""
    for _ in range(10):
        kernel.signal(signal.SIGINT)
        with contextlib.suppress(queue.Empty):
            reply = talk.get_shell_msg(timeout=2)
            assert reply["parent_header"]["msg_id"] == message_id
            return str(reply["content"]["ename"])
    return "nothing"


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_the_pid_of_a_wrapped_kernel_is_the_real_ones(node: Any, client: Any, shell: str) -> None:
    wrapper = node.root / "work" / "wrapper"
    wrapper.write_text(f'#!{shell}\n{sys.executable} -m ipykernel_launcher "$@"\nexit $?\n')
    wrapper.chmod(0o755)
    kernel = node.start(node.launch((str(wrapper), "-f", "{connection_file}")))
    started = node.wait_for("kernel_started")
    talk = client(kernel)
    assert value_of(talk, "print(1)") == "1"
    assert kernel.kernel_pid != started["pid"]
    assert "ipykernel_launcher" in psutil.Process(kernel.kernel_pid).cmdline()
    message_id = begin(talk, "import time; time.sleep(1000)")
    assert interrupted(kernel, talk, message_id) == "KeyboardInterrupt"
    assert value_of(talk, "print('still here')") == "still here"


@pytest.mark.parametrize(
    ("command", "exit_code", "number"),
    [
        ("exit 7", 7, None),
        ("kill -9 $$", None, 9),
        ("kill -TERM $$", None, 15),
        ("kill -INT $$", None, 2),
        ("exit 200", 200, None),
        ("true", 0, None),
    ],
)
def test_the_end_is_reported_exactly(node: Any, command: str, exit_code: int | None, number: int | None) -> None:
    node.start(node.launch(("/bin/sh", "-c", f"echo last words; {command}")))
    ended = node.wait_for("kernel_exited")
    assert (ended["exit_code"], ended["signal"]) == (exit_code, number)
    assert ended["tail"] == "last words"


def test_only_the_last_lines_of_a_flood_are_kept(node: Any) -> None:
    node.start(node.launch((sys.executable, "-c", "for i in range(400_000): print('line', i)")))
    ended = node.wait_for("kernel_exited", 60)
    assert ended["tail"].splitlines()[-1] == "line 399999"
    assert len(ended["tail"].splitlines()) == 20
    assert all(log.stat().st_size <= 1_100_000 for log in (node.root / "scratch").glob("kernel-*.log"))


def test_a_kernel_whose_program_is_missing_says_so(node: Any) -> None:
    node.start(node.launch(("/no/such/python", "-f", "{connection_file}")))
    ended = node.wait_for("kernel_exited")
    assert ended["exit_code"] == 127
    assert "/no/such/python" in ended["tail"]


@pytest.mark.parametrize("victim", ["kernel", "inner", "sandbox"])
def test_whatever_is_killed_everything_of_the_sandbox_ends(node: Any, victim: str) -> None:
    kernel = node.start(node.launch(("/bin/sh", "-c", "setsid sleep 1000 & sleep 1001 & exec sleep 1002")))
    started = node.wait_for("kernel_started")
    everything = node.run_until(lambda: len(t := tree_of(sandbox_of(kernel))) >= 6 and t, "the whole tree")
    pid = {"kernel": started["pid"], "inner": inner_of(kernel).pid, "sandbox": sandbox_of(kernel)}[victim]
    os.kill(pid, signal.SIGKILL)
    ended = node.wait_for("kernel_exited")
    assert (ended["exit_code"], ended["signal"]) == (None, 9)
    node.run_until(lambda: gone(everything), "everything of the sandbox is gone")
    assert [event["type"] for event in node.events].count("kernel_exited") == 1


@pytest.mark.parametrize("by_us", [True, False], ids=["by us", "by somebody else"])
def test_a_kernel_ended_before_its_sandbox_spoke_is_no_failure_of_the_isolation(node: Any, by_us: bool) -> None:
    kernel = node.start(node.launch(SLEEPER))
    if by_us:
        kernel.stop(0.0)
    else:
        os.kill(sandbox_of(kernel), signal.SIGKILL)
    assert node.wait_for("kernel_exited")["signal"] == 9
    assert all(event["ok"] for event in node.events if event["type"] == "isolation"), node.events


@pytest.mark.parametrize("is_early", [True, False], ids=["before the kernel is known", "later"])
def test_what_is_inside_ends_also_when_its_sandbox_did_not_take_it_along(
    node: Any, monkeypatch: pytest.MonkeyPatch, is_early: bool
) -> None:
    """As when the sandbox is killed in the moment before "die with the parent" holds."""
    monkeypatch.setattr("openai4s_provisioner.sandbox.bubblewrap._NAMESPACES", _NEVER_DIES_WITH_PARENT)
    kernel = node.start(node.launch(SLEEPER))
    inner = node.run_until(lambda: next((p for p in tree_of(sandbox_of(kernel)) if p.name() != "bwrap"), None), "inner")
    everything = tree_of(sandbox_of(kernel))
    assert inner in everything
    if is_early:
        os.kill(sandbox_of(kernel), signal.SIGKILL)
    else:
        node.wait_for("kernel_started")
        os.kill(sandbox_of(kernel), signal.SIGKILL)
        kernel.stop(0.0)
    assert node.wait_for("kernel_exited")["signal"] == 9
    node.run_until(lambda: gone(everything), "everything of the sandbox is gone")


def test_stop_gives_a_grace_and_then_ends_everything(node: Any) -> None:
    stubborn = ("/bin/sh", "-c", "trap 'echo asked' TERM; echo ready; while :; do sleep 0.1; done")
    kernel = node.start(node.launch(stubborn))
    node.run_until(lambda: "ready" in kernel._output.tail(), "the kernel's trap")
    everything = tree_of(sandbox_of(kernel))
    kernel.stop(0.5)
    ended = node.wait_for("kernel_exited")
    assert ended["signal"] == 9
    assert "asked" in ended["tail"]
    node.run_until(lambda: gone(everything), "everything of the sandbox is gone")


def test_a_polite_kernel_ends_within_its_grace(node: Any) -> None:
    kernel = node.start(node.launch(SLEEPER))
    node.wait_for("kernel_started")
    kernel.stop(20)
    assert node.wait_for("kernel_exited", 5)["signal"] == signal.SIGTERM


def test_closing_leaves_no_folder_descriptor_or_process(node: Any) -> None:
    before = len(os.listdir("/proc/self/fd"))
    kernel = node.start(node.launch(SLEEPER))
    node.wait_for("kernel_started")
    everything = tree_of(sandbox_of(kernel))
    kernel.close()
    assert gone(everything)
    assert len(os.listdir("/proc/self/fd")) == before
    left = {path.name for path in (node.root / "scratch").iterdir() if path.suffix != ".log"}
    assert left == {"tmp"}
    assert not [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


def test_a_restart_keeps_the_private_temp_and_nothing_else(node: Any) -> None:
    first = node.start(node.launch(("/bin/sh", "-c", "echo kept > /tmp/file; echo gone > /dev/shm/file")))
    node.wait_for("kernel_exited")
    first.close()
    node.events.clear()
    node.start(node.launch(("/bin/sh", "-c", "cat /tmp/file; ls /dev/shm /run/openai4s; exit 0")))
    assert node.wait_for("kernel_exited")["tail"].split() == ["kept", "/dev/shm:", "/run/openai4s:", "connection.json"]


def test_a_sockets_path_that_is_too_long_is_named(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = node.root / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(node, "root", deep)
    (deep / "scratch").mkdir()
    node.start(node.launch(SLEEPER))
    assert "TMPDIR" in node.wait_for("isolation")["sentence"]


def test_a_socket_that_leads_out_of_the_sandbox_is_nobody(node: Any) -> None:
    """A kernel could put a link where its socket is expected, to have a stranger signalled."""
    import socket

    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(node.root / "stranger"))
        stranger.listen(1)
        link = f"ln -s {node.root}/stranger /run/openai4s/k-4; exec sleep 1000"
        kernel = node.start(node.launch(("/bin/sh", "-c", link)))
        started = node.wait_for("kernel_started")
        node.run_until(lambda: os.path.islink(kernel.socket_path("control")), "the link")
        assert kernel.kernel_pid == started["pid"]
        os.unlink(kernel.socket_path("control"))
        os.link(node.root / "stranger", kernel.socket_path("control"))
        assert kernel.kernel_pid == started["pid"]


WORKER = """
import sys
sys.path.insert(0, {folder!r})
import conftest, pathlib
from openai4s_provisioner.sandbox.spec import SandboxSpec
node = conftest.Node(pathlib.Path({root!r}), pathlib.Path({program!r}), SandboxSpec.from_json({spec!r}))
node.start(node.launch(("/bin/sh", "-c", "exec sleep 1000")))
node.wait_for("kernel_started")
print("started", flush=True)
node.loop.run()
"""


def test_a_killed_worker_takes_its_sandbox_along(node: Any, wait_until: Any) -> None:
    code = WORKER.format(
        folder=str(Path(__file__).parent), root=str(node.root), program=str(node.program), spec=node.spec.to_json()
    )
    worker = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"started\n"
    everything = tree_of(worker.pid)
    assert len(everything) >= 5
    worker.kill()
    worker.wait()
    worker.stdout.close()
    wait_until(lambda: gone(everything), "everything of the sandbox is gone")


@pytest.mark.skipif(os.getuid() != 0, reason="this is that run")
def test_all_of_this_as_an_ordinary_user(ordinary_user: Any) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={ordinary_user.home}/t"]
    command.append(str(Path(__file__).parent))
    done = ordinary_user.run(command, timeout=110, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
