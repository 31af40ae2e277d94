"""One throw-away cluster: up, ready in half a second, every daemon at hand for faults, down without a trace.

Several may run side by side. Whoever made one may die: a keeper beside it then ends everything.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from . import accounting, configuration, leftovers, machine, network
from .accounts import Account
from .administration import Administration
from .daemons import Daemon
from .errors import LabError
from .node_view import OWN_MOUNTS, hide, show
from .programs import PATH, missing_packages, program
from .shape import Layout, Ports, Shape

_READY_S = 30.0
_LOOK_AGAIN_S = 0.03
_MARKER = ".throw-away-cluster"  # a folder without it is somebody's, and is not removed
_PASSED_ON = ("OPENAI4S_TEST_RUN",)  # by which a test run finds what outlives it


class Cluster:
    """`folder` is made, and removed by `down`. Use as a context manager, or call `up` and `down`."""

    def __init__(self, folder: Path, shape: Shape | None = None, *, is_kept: bool = True) -> None:
        """`is_kept`: it ends with this process. Otherwise it stays until somebody calls `end(folder)`."""
        self.shape = shape or Shape()
        self.layout = layout_of(folder, self.shape)
        self.admin = Administration(self)
        self._is_kept = is_kept
        self._keeper: subprocess.Popen[bytes] | None = None
        self.munge: Daemon
        self.controller: Daemon
        self.nodes: dict[str, Daemon] = {}
        self.accounting: Daemon | None = None
        self._database: Daemon | None = None
        self._hidden: list[tuple[str, Path]] = []
        self.swept_up_to = 0  # the last job's number when the queue was last emptied

    def __enter__(self) -> Cluster:
        self.up()
        return self

    def __exit__(self, *exception: object) -> None:
        self.down()

    # -- up and down ---------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Everything started and every node idle. Raises LabError, and leaves nothing, when that cannot be had."""
        end(self.layout.folder)
        self._check()
        try:
            self.layout.folder.mkdir(parents=True, exist_ok=True)
            (self.layout.folder / _MARKER).touch()
            self._keep()
            ports = machine.free_ports()
            self._make_folders()
            if self.shape.network:
                network.up(self.layout, ports)
            self._write_configuration(ports)
            self._define_daemons(ports)
            self._start()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """End every process of this cluster, jobs included, and remove its folder."""
        for daemon in self._daemons():
            daemon.kill()
        end(self.layout.folder)
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            self._keeper.stdin.close()
            self._keeper.wait(30)
            self._keeper = None

    def restore(self) -> None:
        """After a fault: no job left, every daemon runs and is awake, every node is idle."""
        while self._hidden:
            node, path = self._hidden.pop()
            if self.nodes[node].is_running:  # a new daemon has a new view
                show(self.nodes[node].pid, path)
        for daemon in self._daemons():
            daemon.wake()
            daemon.start()
        self.wait(self.answers, "the controller to answer")
        self.admin.clear()
        self.wait(self._nodes_are_idle, "every node to be idle", 60.0)
        leftovers.end_jobs(self.layout)
        self.count_from_here()

    def count_from_here(self) -> None:
        """What is in the queue by now belongs to somebody else: see `swept_up_to`."""
        self.swept_up_to = max([int(job["id"]) for job in self.admin.jobs(are_over=True)], default=self.swept_up_to)

    def _check(self) -> None:
        missing = missing_packages(accounting=self.shape.accounting, network=self.shape.network)
        if missing:
            raise LabError(f"a cluster needs Debian packages that are missing: {' '.join(missing)}")
        if self.shape.one_user is None and os.geteuid() != 0:
            raise LabError("a cluster of several accounts needs root; --user runs all of it as yourself")
        if self.shape.one_user is not None and (self.shape.network or self.shape.cgroups):
            raise LabError("network namespaces and control groups need root: leave --user out")
        machine.check_ancestors(self.layout.folder, self.munge_account.uid)

    # -- who runs what -------------------------------------------------------------------------------------------

    @property
    def munge_account(self) -> Account:
        return self.shape.one_user or Account.named("munge")

    @property
    def _controller_account(self) -> Account:
        return self.shape.one_user or Account.named("slurm")

    @property
    def _node_account(self) -> Account:
        return self.shape.one_user or Account.named("root")

    @property
    def database_account(self) -> Account:
        return self.shape.one_user or Account.named("mysql")

    @property
    def administrator(self) -> Account:
        return self.shape.one_user or Account.current()

    # -- the parts of `up` ---------------------------------------------------------------------------------------

    def _make_folders(self) -> None:
        folder, owner = self.layout.folder, self._controller_account
        os.chown(folder, self._node_account.uid, self._node_account.gid)
        folder.chmod(0o755)
        for name, account, mode in (
            ("conf", self._node_account, 0o755),
            ("dev", self._node_account, 0o755),
            ("spool", self._node_account, 0o755),
            ("munge", self.munge_account, 0o755),
            ("controller", owner, 0o700),
            ("log", owner, 0o755),
            ("pid", owner, 0o755),
            ("db", self.database_account, 0o700),
        ):
            made = self.layout.part(name)
            made.mkdir()
            os.chown(made, account.uid, account.gid)
            made.chmod(mode)
        for node in self.layout.nodes:
            self._write(self.layout.part("spool") / node, None, self._node_account, 0o755)

    def _write_configuration(self, ports: Ports) -> None:
        owners = (self._controller_account.name, self._node_account.name)
        text = configuration.slurm_conf(self.shape, self.layout, ports, machine.host_name(), owners, self.login_address)
        devices = machine.gpu_devices(self.layout.part("dev")) if self.shape.one_user is None else "/dev/tty[0-1]"
        conf = self.layout.conf.parent
        self._write(self.layout.conf, text, self._node_account)
        self._write(self.layout.hasty_conf, hasty(text), self._node_account)
        self._write(conf / "gres.conf", configuration.gres_conf(self.layout, devices), self._node_account)
        if self.shape.cgroups:
            limits = configuration.cgroup_conf(self.shape, machine.has_unified_groups())
            self._write(conf / "cgroup.conf", limits, self._node_account)
        if self.shape.accounting:
            account = self._controller_account
            text = configuration.slurmdbd_conf(self.layout, ports, account.name)
            self._write(conf / "slurmdbd.conf", text, account, 0o600)
        key = self.layout.part("munge") / "key"
        self._write(key, secrets.token_bytes(128), self.munge_account, 0o400)

    def _write(self, path: Path, content: str | bytes | None, account: Account, mode: int = 0o644) -> None:
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        os.chown(path, account.uid, account.gid)
        path.chmod(mode)

    def _define_daemons(self, ports: Ports) -> None:
        munge = self.layout.part("munge")
        self.munge = self._daemon(
            "munged",
            [
                program("munged"),
                "--foreground",
                f"--socket={self.layout.munge_socket}",
                f"--key-file={munge}/key",
                f"--pid-file={munge}/pid",
                f"--log-file={munge}/log",
                f"--seed-file={munge}/seed",
            ],
            self.munge_account,
        )
        self.controller = self._daemon("slurmctld", [program("slurmctld"), "-D"], self._controller_account, "login")
        for number, node in enumerate(self.layout.nodes):
            argv = [*self._node_view(), program("slurmd"), "-D", "-N", node]
            self.nodes[node] = self._daemon(f"slurmd-{node}", argv, self._node_account, network.PLACES[number + 1])
        if self.shape.accounting:
            self._database = self._daemon(
                "mariadbd", accounting.database_argv(self.layout, ports), self.database_account, "login"
            )
            self.accounting = self._daemon("slurmdbd", [program("slurmdbd"), "-D"], self._controller_account, "login")

    def _daemon(self, name: str, argv: list[str], account: Account, place: str = "") -> Daemon:
        output = self.layout.log / f"{name}.out"
        if place and self.shape.network:  # entering a network needs root, so the account is taken on behind it
            return Daemon(
                name,
                network.enter(self.layout, place, account) + argv,
                Account.current(),
                self.daemon_environment(),
                output,
            )
        return Daemon(name, argv, account, self.daemon_environment(), output)

    def _node_view(self) -> tuple[str, ...]:
        return OWN_MOUNTS if self.shape.one_user is None else ()

    def _start(self) -> None:
        self.munge.start()
        self.wait(self.layout.munge_socket.exists, "munged to listen", daemon=self.munge)
        if self._database is not None and self.accounting is not None:
            accounting.start(self, self._database, self.accounting)
        self.controller.start()
        for daemon in self.nodes.values():
            daemon.start()
        self.wait(self.answers, "slurmctld to answer", daemon=self.controller)
        self.wait(self._nodes_are_idle, "every node to be idle")

    def _daemons(self) -> list[Daemon]:
        found = [self._database, getattr(self, "munge", None), self.accounting, getattr(self, "controller", None)]
        return [daemon for daemon in (*found, *self.nodes.values()) if daemon is not None]

    def _nodes_are_idle(self) -> bool:
        answer = self.run(["sinfo", "-hN", "-p", "all", "-o", "%t"])
        return answer.returncode == 0 and answer.stdout.split() == ["idle"] * len(self.layout.nodes)

    def _keep(self) -> None:
        if self._is_kept:
            command = [sys.executable, "-m", f"{__package__}.keeper", str(self.layout.folder)]
            self._keeper = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
            )

    # -- asking it -----------------------------------------------------------------------------------------------

    def daemon_environment(self) -> dict[str, str]:
        passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        mark = {leftovers.MARK: str(self.layout.folder)}
        return {"PATH": PATH, "LANG": "C.UTF-8", "SLURM_CONF": str(self.layout.conf), **mark, **passed}

    def hide(self, node: str, path: Path) -> None:
        """Take a folder or a program away from one node, until `restore`. Needs root."""
        hide(self.nodes[node].pid, path)
        self._hidden.append((node, path))

    def client_environment(self, *, is_hasty: bool = False) -> dict[str, str]:
        """What a client needs to find this cluster. A hasty one gives up after two seconds instead of ten."""
        return {"SLURM_CONF": str(self.layout.hasty_conf if is_hasty else self.layout.conf)}

    @property
    def login_address(self) -> str:
        """Where nodes find what listens on the login host."""
        return configuration.LOGIN_ADDRESS if self.shape.network else "127.0.0.1"

    def on_login_host(self, user: Any) -> list[str]:
        """What root puts before a command that `user` is to run there; nothing where there is one network only."""
        if not self.shape.network:
            return []
        return network.enter(self.layout, "login", Account(user.name, user.uid, user.gid, ""))

    def run(
        self,
        argv: Sequence[str],
        account: Account | None = None,
        *,
        text_in: str = "",
        timeout_s: float = 60.0,
        is_hasty: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a client's command as `account`, the administrator by default; stdout and stderr as text."""
        account = account or self.administrator
        command, options = list(argv), account.popen_options()
        if self.shape.network:
            command, options = network.enter(self.layout, "login", account) + command, {}
        environment = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": account.home, "USER": account.name}
        return subprocess.run(
            command,
            env=environment | self.client_environment(is_hasty=is_hasty),
            input=text_in,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            cwd="/",
            **options,
        )

    @property
    def version(self) -> tuple[int, int]:
        """Slurm's, as in (22, 5)."""
        words = self.run(["scontrol", "--version"]).stdout.split()
        year, month = words[-1].split(".")[:2]
        return int(year), int(month)

    def job_processes(self) -> list[psutil.Process]:
        """What runs for jobs of this cluster now, without Slurm's own processes."""
        return leftovers.jobs(self.layout)

    def kernels(self) -> list[psutil.Process]:
        """Among them, the kernels of Jupyter."""
        return [process for process in self.job_processes() if "ipykernel_launcher" in _command_line(process)]

    def answers(self) -> bool:
        """Whether the controller can be asked now."""
        return "UP" in self.run(["scontrol", "ping"]).stdout

    def can_connect(self, place: str, address: str, port: int) -> bool:
        """Whether a program at `place`, "login" or a node, gets a TCP connection there."""
        code = f"import socket; socket.create_connection(({address!r}, {port}), timeout=3)"
        command = [*network.enter(self.layout, place, Account.current()), sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def wait(
        self, condition: Callable[[], object], what: str, deadline_s: float = _READY_S, daemon: Daemon | None = None
    ) -> None:
        deadline = time.monotonic() + deadline_s
        while not condition():
            if daemon is not None and not daemon.is_running:
                raise LabError(f"{daemon.name} ended: {daemon.complaint()}")
            if time.monotonic() > deadline:
                raise LabError(f"waited {deadline_s:g} s for {what}")
            time.sleep(_LOOK_AGAIN_S)


def layout_of(folder: Path, shape: Shape | None = None) -> Layout:
    """The same folder always gives the same tag, so that whoever cleans up needs nothing else."""
    folder = folder.resolve()
    tag = "o" + hashlib.sha256(os.fsencode(folder)).hexdigest()[:5]
    return Layout(folder, tag, prefix=tag if shape is not None and shape.cgroups else "")


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def hasty(text: str) -> str:
    """A client's own configuration decides how long it waits for an answer."""
    wanted = {"MessageTimeout": "2", "TCPTimeout": "1"}
    lines = [line for line in text.splitlines() if line.partition("=")[0] not in wanted]
    return "\n".join(lines + [f"{name}={value}" for name, value in wanted.items()]) + "\n"


def end(folder: Path) -> None:
    """End whatever runs of the cluster in `folder`, whoever started it, and remove the folder."""
    layout = layout_of(folder)
    if layout.folder.exists() and not (layout.folder / _MARKER).exists() and any(layout.folder.iterdir()):
        raise LabError(f"{layout.folder} holds something else than a throw-away cluster: choose another folder")
    leftovers.end_everything(layout)
    network.down(layout)
    shutil.rmtree(layout.folder, ignore_errors=True)
