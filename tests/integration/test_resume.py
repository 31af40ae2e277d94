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
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from openai4s_provisioner.gateway.worker_gateway import WorkerGateway
from openai4s_provisioner.testing.cables import IN_THE_HANDSHAKE, CableThatIsCut, Plan, cuts_at_random

from .conftest import SessionLab, processes_below

FULL = "OPENAI4S_FULL" in os.environ
MESSAGES, BIG_MB, CUTS = (100_000, 100, 200) if FULL else (3000, 5, 20)
PRINTED_MB, PAUSE_S, SMALL_SPOOL_MB = (1000, 60, 200) if FULL else (120, 3, 20)
SLACK_MB = 16  # what the allocator keeps, and on the server's end the test itself
RESIDENT_MB = 32  # of what is kept for readers, at each end; what a process needs to run at all comes on top
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
        self.numbers: list[int] = []
        self.stdout = hashlib.sha256()
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
            text = json.loads(signed[3])["data"]["text/plain"]
            self.digest.update(text.encode())
            self.numbers.append(int(text[:9]) if text[:9].isdigit() else -1)
        elif kind == "status" and json.loads(signed[3])["execution_state"] == "idle":
            self._idle.add(json.loads(signed[1]).get("msg_id", ""))
        elif kind == "stream":
            content = json.loads(signed[3])
            if content["name"] == "stderr":
                self.notices.append({"text": content["text"], "parent": json.loads(signed[1])})
            else:
                self.printed += len(content["text"])
                self.stdout.update(content["text"].encode())


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
def small_spool(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place.root / "cluster.toml"
    path.write_text(f"[profiles.default]\nspool_mb = {SMALL_SPOOL_MB}\n")
    monkeypatch.setenv("OPENAI4S_CLUSTER_TOML", str(path))


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
    cut = cable(cuts_at_random(seed=3, mean_bytes=(MESSAGES * 600 + BIG_MB * 2**20) // CUTS // 20, most=2 * CUTS))
    started = time.monotonic()
    await lab.start()
    assert lab.client is not None
    figure(
        "seconds to a kernel that answers, probe included, its handshake cut six times",
        round(time.monotonic() - started, 1),
    )
    read = reader()
    await subscribed(lab, read)
    lab.client.iopub_channel.stop()  # it would be a second reader, which takes its time at the end
    request = lab.client.execute(SENDER.format(messages=MESSAGES, big=BIG_MB * 2**20, nodrop=int(zmq.XPUB_NODROP)))
    began = time.monotonic()
    reply = await lab.reply_to(request, 1000)
    assert reply["status"] == "ok", reply
    await lab.until(lambda: read.is_idle_after(request), "the reader saw the cell's end", 300)
    took = time.monotonic() - began
    await lab.connect()
    sent = await lab.value("digest.hexdigest()")
    figure("messages, and MB of the largest", (MESSAGES, BIG_MB))
    figure("seconds", round(took, 1))
    figure("cuts, of them in a handshake", (cut.cuts, cut.cuts_in_handshake))
    assert read.displayed == MESSAGES + 1
    assert read.wrongly_signed == 0
    assert repr(read.digest.hexdigest()) == sent, "byte for byte what the kernel sent, in its order"
    assert cut.cuts >= CUTS
    assert cut.cuts_in_handshake >= len(IN_THE_HANDSHAKE)


NUMBERED = """
for number in range({count}):
    send(f"{{number:09d}}".ljust(99_000, "x"))
"""
PRINTER = """
import hashlib, sys
digest = hashlib.sha256()
for number in range({mb} * 10):
    line = f"{{number:09d}}".ljust(99_999, "x") + "\\n"
    digest.update(line.encode())
    sys.stdout.write(line)
    if number % 10 == 9:
        sys.stdout.flush()
"""


class Memory:
    """How much this process, the gateway's, and the worker grew, sampled ten times a second."""

    def __init__(self, root: Path) -> None:
        (worker,) = (each for each in processes_below(root, ".pyz worker ") if each.cmdline()[2].endswith(".pyz"))
        self._ends = (worker, psutil.Process())
        self._before = self._now()
        self.peak = self._before

    async def watch(self) -> None:
        while True:
            self.peak = [max(pair) for pair in zip(self.peak, self._now(), strict=True)]
            await asyncio.sleep(0.1)

    def grown_mb(self) -> list[float]:
        return [round((peak - before) / 2**20, 1) for peak, before in zip(self.peak, self._before, strict=True)]

    def resident_mb(self) -> list[float]:
        return [round(peak / 2**20, 1) for peak in self.peak]

    def _now(self) -> list[int]:
        return [process.memory_info().rss for process in self._ends]


async def pause_while(lab: SessionLab, read: Reader, code: str, place: Any, figure: Figure) -> str:
    """Run `code` while the reader reads nothing, go on pausing, and let it read to the end. The request's id."""
    assert lab.client is not None
    lab.client.iopub_channel.stop()  # it would be a second reader
    memory = Memory(place.root)
    watching = asyncio.create_task(memory.watch())
    read.may_read.clear()
    began = time.monotonic()
    request = lab.client.execute(code)
    reply = await lab.reply_to(request, 1000)
    assert reply["status"] == "ok", reply
    figure("seconds to the reply, with the reader away", round(time.monotonic() - began, 1))
    await asyncio.sleep(max(0.0, PAUSE_S - (time.monotonic() - began)))  # the pause itself, not a synchronisation
    read.may_read.set()
    await lab.until(lambda: read.is_idle_after(request), "the reader saw the cell's end", 600)
    watching.cancel()
    figure("seconds in all", round(time.monotonic() - began, 1))
    figure("resident MB at most, worker and server", memory.resident_mb())
    figure("of that, MB grown by the pause", memory.grown_mb())
    assert max(memory.grown_mb()) <= RESIDENT_MB + SLACK_MB
    return str(request)


@pytest.mark.anyio
@pytest.mark.timeout(1200)
async def test_a_reader_that_pauses_loses_nothing_within_the_bound(
    lab: SessionLab, reader: Callable[[], Reader], place: Any, figure: Figure
) -> None:
    await lab.start()
    read = reader()
    await subscribed(lab, read)
    await pause_while(lab, read, PRINTER.format(mb=PRINTED_MB), place, figure)
    figure("MB printed", read.printed / 1e6)
    assert read.printed == PRINTED_MB * 1_000_000
    assert read.wrongly_signed == 0
    assert read.notices == []
    await lab.connect()
    assert repr(read.stdout.hexdigest()) == await lab.value("digest.hexdigest()")


@pytest.mark.anyio
@pytest.mark.timeout(1200)
async def test_past_the_bound_the_oldest_goes_and_a_notice_says_how_much(
    small_spool: None,
    lab: SessionLab,
    reader: Callable[[], Reader],
    place: Any,
    figure: Figure,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    await lab.start()
    read = reader()
    await subscribed(lab, read)
    count = PRINTED_MB * 10
    code = SENDER.format(messages=0, big=0, nodrop=int(zmq.XPUB_NODROP)).replace("send(chosen", "#")
    request = await pause_while(lab, read, code + NUMBERED.format(count=count), place, figure)
    assert read.wrongly_signed == 0
    (notice,) = read.notices
    numbers = read.numbers
    lost = sorted(set(range(count)) - set(numbers))
    figure("messages sent, lost, and what the notice says", (count, len(lost), notice["text"].strip()))
    assert numbers == sorted(set(numbers)), "in order, none twice"
    assert lost == list(range(lost[0], lost[-1] + 1)), "one gap"
    assert numbers[-1] == count - 1
    assert f"{len(lost)} messages" in notice["text"]
    assert notice["parent"]["msg_id"] == request, "shown in the cell that it belongs to"
    kept_mb = (count - len(lost)) / 10
    assert SMALL_SPOOL_MB <= kept_mb <= 1.1 * (SMALL_SPOOL_MB + RESIDENT_MB)
    said = f"{len(lost)} messages of output"
    await lab.until(lambda: sum(said in one.getMessage() for one in caplog.records) >= 2, "it is logged and an event")


@pytest.mark.anyio
async def test_an_interrupted_connection_is_an_event_that_goes_away_again(
    cable: Callable[..., CableThatIsCut], lab: SessionLab, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def said(text: str) -> int:
        return sum(text in one.getMessage() for one in caplog.records)

    one = cable(lambda number: None)
    await lab.start()
    ready = said("4 of 4 conditions")
    one.refuse()
    await lab.until(lambda: said("is interrupted since"), "it is said that the connection is interrupted")
    one.flow_again()
    await lab.until(lambda: said("4 of 4 conditions") > ready, "it is said that all is well again")
    assert await lab.value("1 + 1") == "2"
