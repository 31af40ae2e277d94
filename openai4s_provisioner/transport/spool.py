"""A bounded queue of bytes between a kernel that must always be read and a reader that may be slow or gone.

Memory first, then a file on the node (`SpoolRoom`). Past both bounds the oldest whole ZMTP messages go, so that what
is left is still a valid stream: never the greeting, never the handshake, never a message that is partly taken; in
their place the owner may put a message of its own. Where boundaries are not known (not ZMTP, encrypted), or the one
message that is being taken fills everything, nothing can be dropped: then `is_full` asks the owner to stop reading.
Knows no stream and no socket.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Optional

from ..wire.zmtp import MessageFinder, Verdict
from .room import SpoolRoom

# What the owner of a gap is shown of what follows: the headers of a message, not its content.
PEEK = 16 * 1024

OnLoss = Callable[[int, int, bytes], Optional[bytes]]
"""(messages, bytes, the first bytes of the message behind the gap) -> a whole message to put there, or None."""


class _Block:
    """Bytes [start, end) of up to a room's block, in memory or in a slot of the file.

    Boundaries are kept for each block and not for each message, so a million small messages cost nothing. The price:
    a drop reaches from one block's first message to another's.
    """

    def __init__(self) -> None:
        self.data: bytearray | None = bytearray()  # None: in `slot`
        self.slot = -1
        self.start = 0
        self.end = 0
        self.is_sealed = False  # nothing is appended any more
        self.cut: int | None = None  # where the first message begins that begins here and is untouched
        self.messages = 0  # how many begin at `cut` and after

    def add(self, piece: memoryview, cut: int | None, messages: int) -> None:
        assert self.data is not None
        if cut is not None and self.cut is None:
            self.cut = self.end + cut
            self.messages = 0
        self.messages += messages
        self.data += piece
        self.end += len(piece)


class Spool:
    def __init__(self, room: SpoolRoom | None = None, on_loss: OnLoss | None = None) -> None:
        """`on_loss` is called once for each gap, when the reader comes to it, so its numbers are final."""
        self.size = 0  # bytes that wait
        self.lost_messages = 0
        self.lost_bytes = 0
        self._on_loss = on_loss
        self._finder = MessageFinder()
        self._blocks: deque[_Block] = deque()
        self._room = room or SpoolRoom()
        self._block_bytes = self._room.block
        self._slots = self._room.slots
        self._inserted = b""  # goes out before anything else
        self._memory = 0  # bytes of the sealed blocks in memory; the open one comes on top
        self._is_discarding = False  # the rest of a dropped message is still to come
        # Drops always widen the gap that the reader comes to next, so there is never a second one.
        self._gap_messages = 0
        self._gap_bytes = 0
        self._behind_gap: _Block | None = None  # None with a gap: whatever is appended next
        self._room.join(self)

    @property
    def is_full(self) -> bool:
        """Past the bound, and nothing may be dropped: append nothing before something was taken."""
        return self._memory > self._room.share

    def append(self, data: bytes | memoryview) -> None:
        starts = self._finder.feed(data)
        view = memoryview(data)
        at = nth = 0
        while at < len(view):
            if self._is_discarding:
                self._is_discarding = nth == len(starts)
                stop = len(view) if self._is_discarding else starts[nth]
                self._lose(0, stop - at)
                at = stop
                continue
            block = self._open_block()
            piece = view[at : at + self._block_bytes - block.end]
            after = bisect_left(starts, at + len(piece), nth)
            block.add(piece, starts[nth] - at if after > nth else None, after - nth)
            self.size += len(piece)
            at += len(piece)
            nth = after
            if block.end == self._block_bytes:
                self._seal(block)
                self._shrink()

    def take(self, most: int) -> bytes:
        """Up to `most` of the oldest bytes, empty when none wait. Raises OSError when the disk lost them."""
        if self._blocks and self._blocks[0] is self._behind_gap and not self._inserted:
            self._report_gap()
        if self._inserted or not self._blocks:
            return self._take_inserted(most)
        head = self._blocks[0]
        size = min(most, head.end - head.start)
        chunk = self._read(head, size)
        head.start += size
        self.size -= size
        if head.cut is not None and head.cut < head.start:
            head.cut = None
        if head.start == head.end:
            self._release(self._blocks.popleft())
        self._shrink()
        return chunk

    def close(self) -> None:
        while self._blocks:
            self._release(self._blocks.popleft())
        self._inserted = b""
        self.size = 0
        self._room.leave(self)

    # Blocks.

    def _open_block(self) -> _Block:
        if not self._blocks or self._blocks[-1].is_sealed:
            block = _Block()
            self._blocks.append(block)
            if self._gap_bytes and self._behind_gap is None:
                self._behind_gap = block
        return self._blocks[-1]

    def _seal(self, block: _Block) -> None:
        block.is_sealed = True
        self._memory += block.end

    def _read(self, block: _Block, size: int) -> bytes:
        if block.data is None:
            return self._slots.read(block.slot, block.start, size)
        return bytes(memoryview(block.data)[block.start : block.start + size])

    def _release(self, block: _Block) -> None:
        """A block that left the queue."""
        if block.data is None:
            self._slots.free(block.slot)
        elif block.is_sealed:
            self._memory -= block.end

    # Staying within the bound.

    def _shrink(self) -> None:
        while self.is_full and (self._spill() or self._drop_oldest()):
            pass

    def _spill(self) -> bool:
        """Moves the newest sealed block to the file: the oldest are read next, and stay in memory."""
        newest = next((block for block in islice(reversed(self._blocks), 2) if block.is_sealed), None)
        if newest is None or newest.data is None:
            return False
        return self._spill_block(newest)

    def _spill_block(self, block: _Block) -> bool:
        assert block.data is not None
        slot = self._slots.write(block.data)
        if slot is None:
            return False
        block.slot = slot
        block.data = None
        self._memory -= block.end
        return True

    def spill_to_share(self) -> None:
        """The room has given away some of the memory."""
        for block in reversed(self._blocks):
            if not self.is_full:
                return
            if block.is_sealed and block.data is not None and not self._spill_block(block):
                break
        self._shrink()

    def _drop_oldest(self) -> bool:
        """Takes out what lies between the two oldest known starts of messages; with only one, all behind it."""
        if self._finder.verdict is Verdict.OPAQUE:
            return False
        cuts = list(islice((place for place, block in enumerate(self._blocks) if block.cut is not None), 2))
        if not cuts:
            return False
        first = cuts[0]
        beyond = cuts[1] if len(cuts) == 2 else len(self._blocks)
        self._blocks.rotate(-first)
        front = self._blocks.popleft()
        for _ in range(beyond - first - 1):
            block = self._blocks.popleft()
            self._drop(0, block.end - block.start)
            self._release(block)
        if len(cuts) == 2:
            self._behind_gap = self._blocks[0]
            self._skip_to_cut(self._blocks[0])
        else:
            self._behind_gap = None
            self._is_discarding = True
        self._cut_off(front)
        if front.start < front.end:
            self._blocks.appendleft(front)
        else:
            self._release(front)
        self._blocks.rotate(first)
        return True

    def _skip_to_cut(self, block: _Block) -> None:
        assert block.cut is not None
        self._drop(0, block.cut - block.start)
        block.start = block.cut

    def _cut_off(self, block: _Block) -> None:
        """Ends `block` where its first untouched message begins."""
        assert block.cut is not None
        cut = block.cut
        self._drop(block.messages, block.end - cut)
        if not block.is_sealed:
            self._seal(block)
        if block.data is not None:
            self._memory -= block.end - cut
            del block.data[cut:]
        block.end = cut
        block.cut = None

    def _drop(self, messages: int, size: int) -> None:
        self.size -= size
        self._lose(messages, size)

    def _lose(self, messages: int, size: int) -> None:
        self.lost_messages += messages
        self.lost_bytes += size
        self._gap_messages += messages
        self._gap_bytes += size

    def _report_gap(self) -> None:
        messages, size = self._gap_messages, self._gap_bytes
        self._gap_messages = self._gap_bytes = 0
        self._behind_gap = None
        if self._on_loss is not None:
            notice = self._on_loss(messages, size, self._peek())
            if notice:
                self._inserted = notice
                self.size += len(notice)

    def _peek(self) -> bytes:
        """What comes next, as far as it is here and no more than `PEEK`."""
        shown = b""
        for block in self._blocks:
            shown += self._read(block, min(PEEK - len(shown), block.end - block.start))
            if len(shown) == PEEK:
                break
        return shown

    def _take_inserted(self, most: int) -> bytes:
        chunk, self._inserted = self._inserted[:most], self._inserted[most:]
        self.size -= len(chunk)
        return chunk
