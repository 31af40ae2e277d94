"""Whether a kernel really answers: `kernel_info`, then ``1+1`` without a trace, over its own channels.

It is the last of the four conditions, so it asks what a notebook would ask and nothing else. It needs a running
asyncio loop, opens one socket, and closes it however it ends. The only module here that knows zmq.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import zmq
import zmq.asyncio
from jupyter_client.session import Session

from ..orchestration.errors import ProvisionerError
from ..orchestration.models import ReadyCheck

_FIRST_REPEAT_S = 1.0
_LONGEST_REPEAT_S = 8.0


class KernelSilent(ProvisionerError):
    """The kernel did not answer in time, or answered that it cannot run ``1+1``."""


async def kernel_answers(connection_info: Mapping[str, Any], check: ReadyCheck, deadline_s: float) -> None:
    """Return once the kernel has answered; raise KernelSilent when it has not within `deadline_s` seconds."""
    context = zmq.asyncio.Context()
    shell = _Shell(context, connection_info)
    try:
        async with asyncio.timeout(deadline_s):
            await shell.ask_until_answered("kernel_info_request", {})
            if check is ReadyCheck.EXECUTE:
                reply = await shell.ask_once("execute_request", _ONE_PLUS_ONE)
                if reply.get("status") != "ok":
                    raise KernelSilent(
                        f"The kernel answered, but could not run 1+1: {reply.get('ename', 'no reason given')}."
                    )
    except TimeoutError:
        raise KernelSilent(f"The kernel did not answer {shell.waiting_for} within {deadline_s:.0f} s.") from None
    finally:
        shell.close()
        context.destroy(linger=0)


_ONE_PLUS_ONE = {
    "code": "1+1",
    "silent": True,
    "store_history": False,
    "user_expressions": {},
    "allow_stdin": False,
    "stop_on_error": True,
}


class _Shell:
    """The shell channel, as far as the check needs it."""

    def __init__(self, context: zmq.asyncio.Context, connection_info: Mapping[str, Any]) -> None:
        key = connection_info.get("key", "")
        self._session = Session(
            key=key.encode() if isinstance(key, str) else key,
            signature_scheme=connection_info.get("signature_scheme") or "hmac-sha256",
        )
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.identity = self._session.bsession
        if connection_info.get("curve_publickey"):  # one pair for both ends, as jupyter_client has it
            self._socket.curve_serverkey = self._socket.curve_publickey = connection_info["curve_publickey"].encode()
            self._socket.curve_secretkey = connection_info["curve_secretkey"].encode()
        self._socket.connect(_url(connection_info))
        self.waiting_for = ""

    def close(self) -> None:
        self._socket.close(linger=0)

    async def ask_once(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        self.waiting_for = kind
        return await self._reply_to({await self._send(kind, content)})

    async def ask_until_answered(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        """A request may vanish with a connection made before the kernel's socket existed, so it is repeated."""
        self.waiting_for = kind
        sent: set[str] = set()
        patience = _FIRST_REPEAT_S
        while True:
            sent.add(await self._send(kind, content))
            try:
                async with asyncio.timeout(patience):
                    return await self._reply_to(sent)
            except TimeoutError:
                patience = min(2 * patience, _LONGEST_REPEAT_S)

    async def _send(self, kind: str, content: dict[str, Any]) -> str:
        message = self._session.msg(kind, content=content)
        await self._socket.send_multipart(self._session.serialize(message))
        message_id: str = message["header"]["msg_id"]
        return message_id

    async def _reply_to(self, sent: set[str]) -> dict[str, Any]:
        while True:
            frames = await self._socket.recv_multipart()
            try:
                reply = self._session.deserialize(self._session.feed_identities(frames)[1])
            except ValueError:  # not signed with our key: not an answer to us
                continue
            if reply["parent_header"].get("msg_id") in sent:
                content: dict[str, Any] = reply["content"]
                return content


def _url(connection_info: Mapping[str, Any]) -> str:
    transport, ip, port = (connection_info[name] for name in ("transport", "ip", "shell_port"))
    return f"{transport}://{ip}{'-' if transport == 'ipc' else ':'}{port}"
