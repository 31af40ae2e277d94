"""A real JupyterLab server for a browser: authentication on, private folders, session kernels installed.

Its folders are the place's; a server can be stopped, killed and started again there, as a person's would be.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from openai4s_provisioner.testing import queueing_backend

from .leftovers import processes_of
from .place import Place

# The toast that asks about news would lie over ours.
_SETTINGS = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}
START_WITHIN_S = 90
_WORKER = re.compile(r"^\S+ -I \S+\.pyz worker ")


class Lab:
    """One person's JupyterLab in a place. `base_url` as an administrator sets it behind a proxy."""

    def __init__(self, place: Place, cluster_toml: str = "", base_url: str = "/", port: int = 0) -> None:
        self.place = place
        self.token = secrets.token_hex(16)
        self.base_url = base_url
        self.port = port or free_port()
        self.log = place.root / "lab.log"
        self.process: subprocess.Popen[bytes] | None = None
        queueing_backend.install(place.root / "site")
        known = os.pathsep.join(filter(None, (str(place.root / "site"), os.environ.get("PYTHONPATH"))))
        self.environment = {**os.environ, **place.env, "JUPYTER_TOKEN": self.token, "PYTHONPATH": known}
        settings = place.root / "lab-settings"
        settings.mkdir(exist_ok=True)
        (settings / "overrides.json").write_text(json.dumps(_SETTINGS), encoding="utf-8")
        self._settings = settings
        if cluster_toml:
            path = place.root / "cluster.toml"
            path.write_text(cluster_toml, encoding="utf-8")
            self.environment["OPENAI4S_CLUSTER_TOML"] = str(path)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.base_url}"

    def install_kernels(self, profiles: Sequence[str]) -> None:
        for profile in profiles:
            command = [sys.executable, "-m", "openai4s_provisioner.jupyter.cli", "kernels", "install"]
            with self.popen([*command, "--profile", profile], stdout=subprocess.DEVNULL) as installing:
                if installing.wait(60) != 0:
                    raise RuntimeError(f"the kernel of profile {profile!r} could not be installed")

    def popen(self, command: list[str], **options: Any) -> subprocess.Popen[Any]:
        """A program of this person, where the server runs."""
        return subprocess.Popen(command, env=self.environment, **options)

    def start(self, *options: str) -> None:
        """Start the server and wait until it answers."""
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ServerApp.ip=127.0.0.1"]
        command += [f"--ServerApp.port={self.port}", "--ServerApp.port_retries=0", "--ServerApp.allow_root=True"]
        command += [f"--ServerApp.root_dir={self.place.work}", f"--ServerApp.base_url={self.base_url}"]
        command += [f"--LabServerApp.app_settings_dir={self._settings}", "--expose-app-in-browser", *options]
        with self.log.open("ab") as output:
            self.process = self.popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_WITHIN_S
        while self.process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                self.ask("GET", "api/status")
                return
            time.sleep(0.1)
        raise RuntimeError(f"JupyterLab does not answer; its log ends with:\n{self.tail()}")

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self, signum: int = signal.SIGTERM) -> float:
        """End the server as an administrator would. Returns the seconds it took."""
        started, process = time.monotonic(), self.process
        if process is not None and process.poll() is None:
            process.send_signal(signum)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.process = None
        return time.monotonic() - started

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """One REST call by token. Raises `urllib.error.HTTPError` for an error status."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, method=method)
        request.add_header("Authorization", f"token {self.token}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = answer.read()
        return json.loads(content) if content else None

    def write_notebook(self, path: str, profile: str) -> None:
        """An empty notebook whose kernel is a session of that profile."""
        name = f"python3-{profile}-session"
        kernelspec = {"name": name, "display_name": f"Python 3 ({profile} session)", "language": "python"}
        cell: dict[str, Any] = {
            "cell_type": "code",
            "id": "first",
            "source": "",
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        }
        content = {"cells": [cell], "metadata": {"kernelspec": kernelspec}, "nbformat": 4, "nbformat_minor": 5}
        target = self.place.work / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(content), encoding="utf-8")

    def open_session(self, path: str, profile: str) -> dict[str, Any]:
        """A kernel of a session for that notebook, as another front end would start it."""
        kernel = {"name": f"python3-{profile}-session"}
        body = {"path": path, "name": path.rpartition("/")[2], "type": "notebook", "kernel": kernel}
        opened: dict[str, Any] = self.ask("POST", "api/sessions", body)
        return opened

    def sessions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("GET", "openai4s/sessions")["sessions"]
        return found

    def alive(self) -> list[dict[str, Any]]:
        return [each for each in self.sessions() if each["state"] != "ended"]

    def end_what_runs(self, reason: str) -> None:
        """As such an end comes: the worker dies with everything, and the queueing backend reports this reason."""
        ends = Path(self.place.env["XDG_STATE_HOME"]) / "openai4s" / "ends"
        ends.mkdir(exist_ok=True)
        (ends / reason).touch()
        for process in processes_of(str(self.place.root)):
            with contextlib.suppress(psutil.Error):
                if _WORKER.search(" ".join(process.cmdline())):
                    process.kill()

    def shut_everything_down(self) -> None:
        """Whatever a test left behind, so that the next one begins with an empty server."""
        for each in self.ask("GET", "api/sessions"):
            with contextlib.suppress(urllib.error.HTTPError):
                self.ask("DELETE", f"api/sessions/{each['id']}")
        for each in self.ask("GET", "api/kernels"):
            with contextlib.suppress(urllib.error.HTTPError):
                self.ask("DELETE", f"api/kernels/{each['id']}")
        for each in self.ask("GET", "openai4s/sessions")["batches"]:
            if each["state"] != "ended":
                with contextlib.suppress(urllib.error.HTTPError):
                    self.ask("POST", f"openai4s/batches/{each['workload_id']}/stop", {})

    def tail(self, length: int = 4000) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-length:]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
