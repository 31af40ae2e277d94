"""The spool keeps order and bounds, and what it drops are the oldest whole messages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner.transport.room import BLOCK, SpoolRoom
from openai4s_provisioner.transport.spool import Spool
from openai4s_provisioner.wire.zmtp import MessageFinder, Verdict

MakeSpool = Callable[..., Spool]

HEAD = b"\xff" + bytes(7) + b"\x01\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32) + b"\x04\x06\x05READY"


def message(number: int, size: int = 1000) -> bytes:
    """Two parts, the first its number."""
    return b"\x01\x08" + number.to_bytes(8, "big") + b"\x02" + size.to_bytes(8, "big") + bytes(size)


def numbers_in(data: bytes) -> list[int]:
    """The messages of a stream that must be valid from the greeting to the end."""
    finder = MessageFinder()
    starts = finder.feed(data)
    assert finder.verdict is Verdict.MESSAGES
    assert data.startswith(HEAD)
    return [int.from_bytes(data[start + 2 : start + 10], "big") for start in starts]


def drain(spool: Spool, chunk: int = 10_000) -> bytes:
    return b"".join(iter(lambda: spool.take(chunk), b""))


@pytest.fixture
def make_spool() -> Iterator[Callable[..., Spool]]:
    made: list[Spool] = []

    def make(memory: int, disk: int, folder: Path | None = None, on_loss: Any = None) -> Spool:
        made.append(Spool(SpoolRoom(memory, disk, folder), on_loss))
        return made[-1]

    yield make
    for spool in made:
        spool.close()


def open_files() -> list[str]:
    return [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")
    ]


def test_what_fits_comes_out_as_it_went_in(make_spool: MakeSpool, tmp_path: Path) -> None:
    spool = make_spool(4 * BLOCK, 4 * BLOCK, tmp_path)
    data = os.urandom(6 * BLOCK)
    for at in range(0, len(data), 7001):
        spool.append(data[at : at + 7001])
    assert spool.size == len(data)
    assert drain(spool) == data
    assert spool.size == 0


def test_memory_is_used_first_and_the_file_is_unlinked_and_closed(make_spool: MakeSpool, tmp_path: Path) -> None:
    spool = make_spool(2 * BLOCK, 8 * BLOCK, tmp_path)
    spool.append(bytes(2 * BLOCK))
    assert not any(str(tmp_path) in path for path in open_files())
    spool.append(bytes(4 * BLOCK))
    assert any(str(tmp_path) in path for path in open_files())
    assert list(tmp_path.iterdir()) == []
    spool.close()
    assert not any(str(tmp_path) in path for path in open_files())


def test_the_file_shrinks_when_it_was_read(make_spool: MakeSpool, tmp_path: Path) -> None:
    spool = make_spool(0, 8 * BLOCK, tmp_path)
    spool.append(bytes(6 * BLOCK))
    fd = next(int(fd) for fd in os.listdir("/proc/self/fd") if str(tmp_path) in os.readlink(f"/proc/self/fd/{fd}"))
    assert os.fstat(fd).st_size == 6 * BLOCK
    drain(spool)
    assert os.fstat(fd).st_size == 0
    spool.close()


@pytest.mark.parametrize("taken_before", [0, len(HEAD), len(HEAD) + 1500])
def test_past_the_bound_the_oldest_whole_messages_go(make_spool: MakeSpool, tmp_path: Path, taken_before: int) -> None:
    lost: list[tuple[int, int]] = []
    spool = make_spool(2 * BLOCK, 2 * BLOCK, tmp_path, lambda *told: lost.append(told[:2]))
    count = 1000
    spool.append(HEAD + message(0) + message(1))
    out = spool.take(taken_before) if taken_before else b""
    for number in range(2, count):
        spool.append(message(number))
    assert spool.size <= 5 * BLOCK
    assert lost == []
    kept = numbers_in(out + drain(spool))
    assert kept[-1] == count - 1
    gap = [number for number in range(count) if number not in kept]
    assert gap == list(range(gap[0], gap[-1] + 1))
    assert gap[0] <= 70
    assert lost == [(len(gap), len(gap) * len(message(0)))]
    assert (spool.lost_messages, spool.lost_bytes) == lost[0]


def test_bytes_in_are_bytes_out_and_bytes_lost(make_spool: MakeSpool) -> None:
    spool = make_spool(BLOCK, 0)
    given = HEAD + b"".join(message(number, 700) for number in range(1000))
    for at in range(0, len(given), 30_000):
        spool.append(given[at : at + 30_000])
    assert len(drain(spool)) + spool.lost_bytes == len(given)


def test_a_message_that_is_partly_taken_is_never_cut(make_spool: MakeSpool, tmp_path: Path) -> None:
    spool = make_spool(2 * BLOCK, 6 * BLOCK, tmp_path)
    big = message(7, 5 * BLOCK)
    spool.append(HEAD + message(1) + big)
    out = spool.take(len(HEAD + message(1)) + 100)
    for number in range(100, 2000):
        spool.append(message(number))
    out += drain(spool)
    kept = numbers_in(out)
    assert kept[:2] == [1, 7]
    assert big in out
    assert kept[-1] == 1999


def test_when_the_one_message_that_is_taken_fills_everything_it_asks_to_stop(make_spool: MakeSpool) -> None:
    spool = make_spool(2 * BLOCK, 0)
    big = message(7, 10 * BLOCK)
    spool.append(HEAD + big[:100])
    out = spool.take(len(HEAD) + 50)
    rest = big[100:]
    while not spool.is_full:
        spool.append(rest[:1000])
        rest = rest[1000:]
    assert spool.size <= 4 * BLOCK
    while rest:
        out += spool.take(BLOCK)
        assert not spool.is_full
        spool.append(rest[:1000])
        rest = rest[1000:]
    assert out + drain(spool) == HEAD + big
    assert spool.lost_bytes == 0


def test_a_message_larger_than_the_spool_goes_whole_although_its_end_is_still_to_come(make_spool: MakeSpool) -> None:
    lost: list[tuple[int, int]] = []
    spool = make_spool(2 * BLOCK, 0, None, lambda *told: lost.append(told[:2]))
    spool.append(HEAD + message(1))
    out = spool.take(len(HEAD + message(1)))
    big = message(2, 20 * BLOCK)
    for at in range(0, len(big), 10_000):
        spool.append(big[at : at + 10_000])
    spool.append(message(3))
    assert numbers_in(out + drain(spool)) == [1, 3]
    assert lost == [(1, len(big))]


@pytest.mark.parametrize("head", [b"", HEAD.replace(b"NULL\0", b"CURVE")])
def test_of_a_stream_without_known_boundaries_nothing_is_dropped(make_spool: MakeSpool, head: bytes) -> None:
    spool = make_spool(2 * BLOCK, 0)
    given = head
    spool.append(head)
    while not spool.is_full:
        piece = os.urandom(5000)
        given += piece
        spool.append(piece)
    assert len(given) <= 4 * BLOCK
    assert drain(spool) == given
    assert not spool.is_full


def test_a_stream_that_turns_out_not_to_be_zmtp_is_never_cut(make_spool: MakeSpool) -> None:
    spool = make_spool(4 * BLOCK, 0)
    given = HEAD + b"".join(message(number) for number in range(150)) + b"\xff is no frame"
    spool.append(given)
    while not spool.is_full:
        spool.append(bytes(5000))
        given += bytes(5000)
    assert drain(spool) == given
    assert spool.lost_bytes == 0


def test_each_gap_is_reported_once_when_the_reader_comes_to_it(make_spool: MakeSpool) -> None:
    lost: list[tuple[int, int]] = []
    spool = make_spool(BLOCK, 0, None, lambda *told: lost.append(told[:2]))
    spool.append(HEAD)
    number = 0
    for reports in (1, 2, 3):
        for _ in range(500):
            spool.append(message(number))
            number += 1
        assert len(lost) == reports - 1
        drain(spool)
        assert len(lost) == reports
    assert sum(messages for messages, _ in lost) == spool.lost_messages
    assert sum(size for _, size in lost) == spool.lost_bytes


def test_a_disk_that_fails_is_given_up_and_the_spool_lives_within_its_memory(
    make_spool: MakeSpool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = os.pwrite
    writes = iter(range(3))

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        if next(writes, None) is None:
            raise OSError(28, "No space left on device")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    spool = make_spool(2 * BLOCK, 100 * BLOCK, tmp_path)
    spool.append(HEAD)
    for number in range(2000):
        spool.append(message(number))
    assert spool.size <= 7 * BLOCK
    assert numbers_in(drain(spool))[-1] == 1999
    assert [record.getMessage() for record in caplog.records] == [
        "the spool on disk is given up: No space left on device"
    ]


def test_a_folder_that_does_not_exist_is_a_disk_that_fails(
    make_spool: MakeSpool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = make_spool(BLOCK, 100 * BLOCK, tmp_path / "missing")
    spool.append(HEAD)
    for number in range(500):
        spool.append(message(number))
    assert spool.size <= 3 * BLOCK
    assert "No such file" in caplog.text


def test_where_messages_were_lost_the_owner_may_put_one_of_its_own(make_spool: MakeSpool) -> None:
    notice = message(4_000_000, 300)
    shown: list[bytes] = []

    def on_loss(messages: int, size: int, following: bytes) -> bytes:
        shown.append(following)
        return notice

    spool = make_spool(2 * BLOCK, 0, None, on_loss)
    spool.append(HEAD + message(0))
    out = spool.take(len(HEAD + message(0)))
    for number in range(1, 1000):
        spool.append(message(number))
    out += drain(spool, 100)
    kept = numbers_in(out)
    at = kept.index(4_000_000)
    assert kept.count(4_000_000) == len(shown) == 1
    assert shown[0].startswith(message(kept[at + 1]))
    assert kept[:at] + kept[at + 1 :] == sorted(kept[:at] + kept[at + 1 :])
    assert spool.size == 0


def test_spools_of_one_room_share_its_memory_and_its_disk(tmp_path: Path) -> None:
    room = SpoolRoom(8 * BLOCK, 100 * BLOCK, tmp_path)
    first = Spool(room)
    given = HEAD + b"".join(message(number) for number in range(1000))
    first.append(given)
    assert not first.is_full
    others = [Spool(room) for _ in range(7)]
    for other in others:
        other.append(given)
    in_memory = sum(len(block.data) for spool in (first, *others) for block in spool._blocks if block.data is not None)
    assert in_memory <= 8 * BLOCK + 8 * BLOCK, "the open block of each comes on top"
    for spool in (first, *others[:5]):
        assert drain(spool) == given, "another's coming loses nothing while the disk has room"
    for spool in (first, *others):
        spool.close()
    assert not any(str(tmp_path) in path for path in open_files())
