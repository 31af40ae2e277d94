"""A small Python kernel that can only do TCP, as a program: run with ``-f CONNECTION_FILE``.

It speaks just enough of Jupyter's protocol for a notebook: cells with output and errors, questions (`input`),
interrupts by signal and by message, a shutdown. It refuses any other transport, as kernels without ipc in their zmq
library do. It answers no heartbeat while a cell runs: it does that, like all but interrupts, between cells.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.session import Session

_CHANNELS = {"shell": zmq.ROUTER, "iopub": zmq.PUB, "stdin": zmq.ROUTER, "control": zmq.ROUTER, "hb": zmq.REP}
_INFO = {
    "status": "ok",
    "protocol_version": "5.3",
    "implementation": "tcp-only",
    "implementation_version": "1",
    "language_info": {"name": "python", "version": "3", "mimetype": "text/x-python", "file_extension": ".py"},
    "banner": "a kernel that can only do TCP",
}
Message = dict[str, Any]


class Kernel:
    def __init__(self, connection: dict[str, Any]) -> None:
        if connection["transport"] != "tcp":
            raise SystemExit(f"this kernel can only do TCP, and was asked for {connection['transport']}")
        self.session = Session(key=connection["key"].encode(), signature_scheme=connection["signature_scheme"])
        # Two, because the end of one waits until its sockets have said everything; the rest may be in use by a cell.
        ours, self._last_words = zmq.Context(), zmq.Context()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        for name, kind in _CHANNELS.items():
            self._sockets[name] = (self._last_words if name in ("iopub", "control") else ours).socket(kind)
            self._sockets[name].bind(f"tcp://{connection['ip']}:{connection[name + '_port']}")
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._parent: Message = {}
        self._peer: list[bytes] = []
        self._publishing = threading.Lock()
        self._count = 0
        self._is_idle = threading.Event()
        self._is_idle.set()
        builtins.input = self._ask
        self._was_asked = False
        if os.environ.get("INTERRUPTS") == "by message":
            signal.signal(signal.SIGINT, self._signalled)

    def run(self) -> None:
        threading.Thread(target=self._serve_control, daemon=True).start()
        poller = zmq.Poller()
        for name in ("shell", "hb"):
            poller.register(self._sockets[name], zmq.POLLIN)
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                ready = dict(poller.poll())
                if self._sockets["hb"] in ready:
                    self._sockets["hb"].send(self._sockets["hb"].recv())
                if self._sockets["shell"] in ready:
                    self._handle("shell")

    def _serve_control(self) -> None:
        while True:
            self._handle("control")

    def _handle(self, channel: str) -> None:
        socket = self._sockets[channel]
        peer, frames = self.session.feed_identities(socket.recv_multipart())
        request = self.session.deserialize(frames)
        kind = request["msg_type"]
        self._publish("status", {"execution_state": "busy"}, request)
        if kind == "execute_request":
            self._parent, self._peer = request, peer
            content = self._execute(request["content"])
        elif kind == "kernel_info_request":
            content = dict(_INFO)
        else:
            content = {"status": "ok", **request["content"]}
        if kind == "interrupt_request":
            self._interrupt()
        reply = kind.replace("_request", "_reply")
        self.session.send(socket, reply, content, parent=request, ident=peer)
        self._publish("status", {"execution_state": "idle"}, request)
        if kind == "shutdown_request":
            self._leave()

    def _interrupt(self) -> None:
        """Again until the cell has ended: a signal right before it falls asleep does not wake it."""
        while not self._is_idle.is_set():
            self._was_asked = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            self._is_idle.wait(0.2)

    def _signalled(self, *_: object) -> None:
        """A signal from outside is nothing to a kernel that is interrupted by messages."""
        if self._was_asked:
            self._was_asked = False
            raise KeyboardInterrupt

    def _leave(self) -> None:
        with self._publishing:
            for name in ("iopub", "control"):
                self._sockets[name].close(linger=1000)
            self._last_words.term()
            os._exit(0)

    def _publish(self, kind: str, content: dict[str, Any], parent: Message) -> None:
        with self._publishing:
            self.session.send(self._sockets["iopub"], kind, content, parent=parent)

    def _execute(self, content: dict[str, Any]) -> dict[str, Any]:
        if not content["silent"]:
            self._count += 1
            self._publish("execute_input", {"code": content["code"], "execution_count": self._count}, self._parent)
        answer: dict[str, Any] = {"execution_count": self._count, "payload": [], "user_expressions": {}}
        self._is_idle.clear()
        try:
            if content["code"] == "1+1" and Path("knows-no-sums").exists():
                raise SyntaxError("this language knows no sums")
            with contextlib.redirect_stdout(_Stream(self)):
                exec(content["code"], self._names)
                for name, code in content["user_expressions"].items():
                    value = repr(eval(code, self._names))
                    answer["user_expressions"][name] = {"status": "ok", "data": {"text/plain": value}, "metadata": {}}
        except BaseException as error:
            self._is_idle.set()
            failure = {"ename": type(error).__name__, "evalue": str(error), "traceback": [repr(error)]}
            self._publish("error", failure, self._parent)
            return {"status": "error", **answer, **failure}
        self._is_idle.set()
        return {"status": "ok", **answer}

    def say(self, text: str) -> None:
        self._publish("stream", {"name": "stdout", "text": text}, self._parent)

    def _ask(self, prompt: object = "") -> str:
        socket = self._sockets["stdin"]
        content = {"prompt": str(prompt), "password": False}
        self.session.send(socket, "input_request", content, parent=self._parent, ident=self._peer)
        reply = self.session.deserialize(self.session.feed_identities(socket.recv_multipart())[1])
        return str(reply["content"]["value"])


class _Stream(io.TextIOBase):
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def write(self, text: str) -> int:
        if text:
            self._kernel.say(text)
        return len(text)


def main(argv: list[str]) -> int:
    Kernel(json.loads(Path(argv[argv.index("-f") + 1]).read_text())).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
