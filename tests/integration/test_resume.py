"""Cut cables and slow readers, with a real session and ipykernel: nothing is lost, nothing is repeated.

Short counts here; `./dev check resume` runs the same at full length and prints the figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import hmac
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import zmq

from openai4s_provisioner.gateway.worker_gateway import WorkerGateway
from openai4s_provisioner.testing.cables import IN_THE_HANDSHAKE, CableThatIsCut, Plan, cuts_at_random

from .conftest import SessionLab

FULL = "OPENAI4S_FULL" in os.environ
MESSAGES, BIG_MB, CUTS = (100_000, 100, 200) if FULL else (3000, 5, 20)
Figure = Callable[[str, object], None]

# A kernel's own PUB socket drops what its reader, on two busy cores, does not take in time: not what is tested here.
SENDER = """
import hashlib, random
kernel, chosen, digest = get_ipython().kernel, random.Random(7), hashlib.sha256()
kernel.iopub_thread.socket.setsockopt({nodrop}, 1)
def send(text):
    digest.update(text.encode())
    content = {{"data": {{"text/plain": text}}, "metadata": {{}}, "transient": {{}}}}
    kernel.session.send(kernel.iopub_socket, "display_data", content, parent=kernel.get_parent(), ident=b"display_data")
def burst(count):
    for number in range(count):
        send(f"{{number}} " + chosen.randbytes(chosen.randrange(200)).hex())
burst({messages} // 2)
send(chosen.randbytes({big} // 2).hex())
burst({messages} // 2)
"""


class Reader:
    """Reads a kernel's iopub in a thread of its own, checks every signature, and hashes what display_data said."""

    def __init__(self, info: dict[str, Any]) -> None:
        self.displayed = 0
        self.digest = hashlib.sha256()
        self.notices: list[dict[str, Any]] = []
        self.printed = 0
        self.wrongly_signed = 0
        self.may_read = threading.Event()
        self.may_read.set()
        self._key = info["key"] if isinstance(info["key"], bytes) else info["key"].encode()
        self._idle: set[str] = set()
        self._ends = False
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.set(zmq.RCVHWM, 2)
        self._socket.set(zmq.SUBSCRIBE, b"")
        self._socket.connect(f"ipc://{info['ip']}-{info['iopub_port']}")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def is_idle_after(self, message_id: str) -> bool:
        return message_id in self._idle

    def close(self) -> None:
        self._ends = True
        self.may_read.set()
        self._thread.join(10)
        self._context.destroy(linger=0)

    def _read(self) -> None:
        while not self._ends:
            self.may_read.wait()
            if self._socket.poll(100):
                self._take(self._socket.recv_multipart())

    def _take(self, frames: list[bytes]) -> None:
        at = frames.index(b"<IDS|MSG>")
        signature, signed = frames[at + 1], frames[at + 2 : at + 6]
        self.wrongly_signed += hmac.new(self._key, b"".join(signed), hashlib.sha256).hexdigest().encode() != signature
        kind = json.loads(signed[0])["msg_type"]
        if kind == "display_data":
            self.displayed += 1
            self.digest.update(json.loads(signed[3])["data"]["text/plain"].encode())
        elif kind == "status" and json.loads(signed[3])["execution_state"] == "idle":
            self._idle.add(json.loads(signed[1]).get("msg_id", ""))
        elif kind == "stream":
            content = json.loads(signed[3])
            if content["name"] == "stderr":
                self.notices.append({"text": content["text"], "parent": json.loads(signed[1])})
            else:
                self.printed += len(content["text"])


@pytest.fixture
def cable(place: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., CableThatIsCut]]:
    """Lays a cable between every worker and the gateway of this process."""
    real: Callable[[WorkerGateway], str] = vars(WorkerGateway)["address"].fget
    laid: list[CableThatIsCut] = []
    gateways: list[WorkerGateway] = []

    def lay(plan: Plan = lambda number: None) -> CableThatIsCut:
        one = CableThatIsCut(str(place.root / "cable"), lambda: real(gateways[0]).removeprefix("unix:"), plan)
        laid.append(one)
        return one

    def address(gateway: WorkerGateway) -> str:
        gateways.append(gateway)
        return laid[0].address

    monkeypatch.setattr(WorkerGateway, "address", property(address))
    yield lay
    for one in laid:
        one.close()


@pytest.fixture
async def reader(lab: SessionLab) -> AsyncIterator[Callable[[], Reader]]:
    opened: list[Reader] = []

    def open_one() -> Reader:
        opened.append(Reader(dict(lab.manager.get_connection_info())))
        return opened[-1]

    yield open_one
    for one in opened:
        await asyncio.to_thread(one.close)


async def subscribed(lab: SessionLab, read: Reader) -> None:
    """A new subscription counts from when the kernel hears of it."""
    assert lab.client is not None
    deadline = time.monotonic() + 60
    while True:
        request = lab.client.execute("")
        await lab.reply_to(request)
        with contextlib.suppress(AssertionError):
            await lab.until(functools.partial(read.is_idle_after, request), "the reader saw a cell's end", 1)
            return
        assert time.monotonic() < deadline, "the reader hears nothing"


@pytest.mark.anyio
@pytest.mark.timeout(1200)
async def test_cuts_at_random_bytes_lose_and_repeat_nothing(
    cable: Callable[..., CableThatIsCut],
    lab: SessionLab,
    reader: Callable[[], Reader],
    figure: Figure,
) -> None:
    cut = cable(cuts_at_random(seed=3, mean_bytes=(MESSAGES * 600 + BIG_MB * 2**20) // CUTS // 4, most=2 * CUTS))
    started = time.monotonic()
    await lab.start()
    assert lab.client is not None
    figure("seconds to a kernel that answers, its handshake cut six times", round(time.monotonic() - started, 1))
    read = reader()
    await subscribed(lab, read)
    request = lab.client.execute(SENDER.format(messages=MESSAGES, big=BIG_MB * 2**20, nodrop=int(zmq.XPUB_NODROP)))
    began = time.monotonic()
    reply = await lab.reply_to(request, 1000)
    assert reply["status"] == "ok", reply
    await lab.until(lambda: read.is_idle_after(request), "the reader saw the cell's end", 300)
    took = time.monotonic() - began
    sent = await lab.value("digest.hexdigest()")
    figure("messages, and MB of the largest", (MESSAGES, BIG_MB))
    figure("seconds", round(took, 1))
    figure("cuts, of them in a handshake", (cut.cuts, cut.cuts_in_handshake))
    assert read.displayed == MESSAGES + 1
    assert read.wrongly_signed == 0
    assert repr(read.digest.hexdigest()) == sent, "byte for byte what the kernel sent, in its order"
    assert cut.cuts >= CUTS
    assert cut.cuts_in_handshake >= len(IN_THE_HANDSHAKE)
