"""Whatever is written, taken and dropped, in whatever order: valid ZMTP comes out, and nothing is miscounted."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from openai4s_provisioner.transport.room import SpoolRoom
from openai4s_provisioner.transport.spool import Spool
from openai4s_provisioner.wire.zmtp import MessageFinder, Verdict

NOTICE = 0xFFFFFFFF
HEAD = b"\xff" + bytes(7) + b"\x01\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32) + b"\x04\x06\x05READY"


def message(number: int, size: int, parts: int) -> bytes:
    head = b"\x01\x04" + number.to_bytes(4, "big")
    body = [bytes([2 | (part < parts - 1)]) + size.to_bytes(8, "big") + bytes(size) for part in range(parts)]
    return head + b"".join(body)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 300)),
        st.tuples(st.just("take"), st.integers(1, 200)),
    ),
    max_size=120,
)


@settings(deadline=None, max_examples=300)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 3)), max_size=60),
    steps=steps,
    memory=st.integers(0, 5),
    disk=st.integers(0, 5),
    with_notices=st.booleans(),
)
def test_a_spool_gives_valid_streams_in_order(
    sizes: list[tuple[int, int]], steps: list[tuple[str, int]], memory: int, disk: int, with_notices: bool
) -> None:
    block = 64
    reports: list[tuple[int, int]] = []
    notice = message(NOTICE, 150, 2)

    def told(messages: int, size: int, following: bytes) -> bytes | None:
        reports.append((messages, size))
        return notice if with_notices else None

    spool = Spool(SpoolRoom(memory * block, disk * block, None, block), told)
    messages = [message(number, *shape) for number, shape in enumerate(sizes)]
    waiting = HEAD + b"".join(messages)
    given_bytes, out = 0, b""
    until_empty = itertools.takewhile(lambda _: waiting, itertools.cycle([("append", 97), ("take", 50)]))
    for step, size in itertools.chain(steps, until_empty):
        if step == "append" and not spool.is_full:
            spool.append(waiting[:size])
            given_bytes += len(waiting[:size])
            waiting = waiting[size:]
            assert spool.size <= (memory + disk + 1) * block + max(size, block) + len(notice) * with_notices
        elif step == "take":
            out += spool.take(size)
        assert len(out) + spool.size + spool.lost_bytes == given_bytes + len(reports) * len(notice) * with_notices
    out += b"".join(iter(lambda: spool.take(1000), b""))
    spool.close()
    assert not waiting
    finder = MessageFinder()
    starts = finder.feed(out)
    assert finder.verdict is Verdict.MESSAGES
    numbers = [int.from_bytes(out[start + 2 : start + 6], "big") for start in starts]
    noticed = numbers.count(NOTICE)
    assert noticed == len(reports) * with_notices
    assert out == HEAD + b"".join(notice if number == NOTICE else messages[number] for number in numbers)
    numbers = [number for number in numbers if number != NOTICE]
    assert numbers == sorted(set(numbers))
    assert spool.lost_messages == len(messages) - len(numbers)
    assert spool.lost_bytes == len(HEAD) + sum(map(len, messages)) - len(out) + noticed * len(notice)
    if not spool.lost_bytes:
        assert reports == []
