"""A real Jupyter server process, driven as a browser drives it: REST for sessions, one websocket for a kernel.

Uses the server's own wire format (`v1.kernel.websocket.jupyter.org`) and no Jupyter client library on this side.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from jupyter_client.session import Session
from jupyter_server.services.kernels.connection.base import deserialize_msg_from_ws_v1, serialize_msg_to_ws_v1
from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse
from tornado.websocket import WebSocketClientConnection, websocket_connect

_PROTOCOL = "v1.kernel.websocket.jupyter.org"
Message = dict[str, Any]


class Server:
    """A running `jupyter server` and how to ask it things."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, token: str, log: Path) -> None:
        self.process = process
        self.log = log
        self._url = url
        self._headers = {"Authorization": f"token {token}"}

    async def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = 180
    ) -> HTTPResponse:
        """One REST call. Does not raise for an error status."""
        content = json.dumps(body or {}) if method in {"POST", "PATCH", "PUT"} else None
        request = HTTPRequest(
            self._url + path, method, self._headers, content, request_timeout=timeout_s, connect_timeout=timeout_s
        )
        return await AsyncHTTPClient().fetch(request, raise_error=False)

    async def open_session(self, kernel_name: str, path: str) -> Message:
        """The answer, which for a session that waits comes before its kernel is ready."""
        body = {"path": path, "name": path, "type": "notebook", "kernel": {"name": kernel_name}}
        answer = await self.ask("POST", "api/sessions", body)
        if answer.code != 201:
            raise RuntimeError(
                f"POST api/sessions answered {answer.code}: {answer.body.decode(errors='replace')[:800]}"
            )
        session: Message = json.loads(answer.body)
        return session

    async def started_session(self, kernel_name: str, path: str) -> Message:
        """The same once its kernel is ready, for kernels in sessions."""
        session = await self.open_session(kernel_name, path)
        while True:
            answer = await self.ask("GET", f"api/kernels/{session['kernel']['id']}")
            kernel: Message = json.loads(answer.body)
            if kernel.get("execution_state") == "starting":
                await asyncio.sleep(0.05)
            elif answer.code == 200 and kernel["execution_state"] != "dead":
                return session
            else:
                raise RuntimeError(f"the kernel did not start: {kernel.get('reason') or kernel.get('message')}")

    @contextlib.asynccontextmanager
    async def channels(self, kernel_id: str) -> AsyncIterator[Channels]:
        """The kernel's five channels over one websocket, as JupyterLab opens it."""
        session = Session()
        url = self._url.replace("http", "ws", 1) + f"api/kernels/{kernel_id}/channels?session_id={session.session}"
        request = HTTPRequest(url, headers=self._headers, request_timeout=60)
        socket = await websocket_connect(request, subprotocols=[_PROTOCOL], max_message_size=1 << 30)
        try:
            yield Channels(socket, session)
        finally:
            socket.close()

    def stop(self) -> int:
        """Ask the server to end as an admin would, and wait for it. Returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Channels:
    """Sends requests to one kernel and collects what belongs to them."""

    def __init__(self, socket: WebSocketClientConnection, session: Session) -> None:
        self._socket = socket
        self.session = session

    async def send(self, channel: str, message: Message, buffers: list[bytes] | None = None) -> None:
        parts = [
            json.dumps(message[part], default=str).encode()
            for part in ("header", "parent_header", "metadata", "content")
        ]
        await self._socket.write_message(serialize_msg_to_ws_v1(parts + (buffers or []), channel), binary=True)

    async def receive(self, timeout_s: float) -> tuple[str, Message]:
        raw = await asyncio.wait_for(self._socket.read_message(), timeout_s)
        if not isinstance(raw, bytes):
            raise ConnectionError("the server closed the kernel's websocket")
        channel, parts = deserialize_msg_from_ws_v1(raw)
        header, parent, metadata, content = (json.loads(bytes(part)) for part in parts[:4])
        message = {"header": header, "parent_header": parent, "metadata": metadata, "content": content}
        return channel, {**message, "msg_type": header["msg_type"], "buffers": parts[4:]}

    async def execute(
        self,
        code: str,
        heard: Callable[[Message], Any] | None = None,
        *,
        answer: str = "",
        timeout_s: float = 600,
        started: asyncio.Event | None = None,
    ) -> Message:
        """Run one cell: its iopub messages go to `heard`, prompts are answered. Returns the reply's content."""
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": True}
        request = self.session.msg("execute_request", {**content, "stop_on_error": True})
        await self.send("shell", request)
        reply: Message | None = None
        idle = False
        while reply is None or not idle:
            channel, message = await self.receive(timeout_s)
            if message["parent_header"].get("msg_id") != request["header"]["msg_id"]:
                continue
            kind = message["msg_type"]
            if channel == "shell":
                reply = message["content"]
            elif channel == "stdin":
                await self.send("stdin", self.session.msg("input_reply", {"value": answer}, parent=message))
            elif heard is not None and (pending := heard(message)) is not None:
                await pending
            if kind == "execute_input" and started is not None:
                started.set()
            idle = idle or (kind == "status" and message["content"]["execution_state"] == "idle")
        return reply


@contextlib.asynccontextmanager
async def running_server(root: Path, log: Path, *options: str) -> AsyncIterator[Server]:
    """Start `jupyter server` on a free port with `root` as its folder; ended at the end, whatever happened."""
    token = secrets.token_hex(16)
    process = _start(root, log, token, options)
    server = None
    try:
        url = await _address(process, log)
        server = Server(process, url, token, log)
        await _answering(server)
        yield server
    finally:
        if process.poll() is None:
            (server or Server(process, "", "", log)).stop()


def _start(root: Path, log: Path, token: str, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "jupyter_server", "--ServerApp.open_browser=False", "--ServerApp.port=0"]
    command += [f"--ServerApp.root_dir={root}", "--ServerApp.allow_root=True"]
    # A browser is protected from floods by default; this client wants every message.
    command += ["--ZMQChannelsWebsocketConnection.limit_rate=False", *options]
    environment = {**os.environ, "JUPYTER_TOKEN": token}
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment)


async def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """The address the server wrote into its runtime folder."""
    record = Path(os.environ["JUPYTER_RUNTIME_DIR"]) / f"jpserver-{process.pid}.json"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if url := _read_url(record):
            return url
        await asyncio.sleep(0.05)
    raise RuntimeError(f"the Jupyter server did not start; its log ends with:\n{_tail(log)}")


async def _answering(server: Server) -> None:
    """The server writes its address down before it listens there."""
    deadline = time.monotonic() + 60
    while server.process.poll() is None:
        with contextlib.suppress(ConnectionError):
            await server.ask("GET", "api/status")
            return
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.05)
    raise RuntimeError(f"the Jupyter server does not answer; its log ends with:\n{_tail(server.log)}")


def _read_url(record: Path) -> str:
    with contextlib.suppress(FileNotFoundError, ValueError):
        return str(json.loads(record.read_text())["url"])
    return ""


def _tail(log: Path) -> str:
    return log.read_text()[-2000:]
