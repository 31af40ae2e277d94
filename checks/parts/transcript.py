"""What a notebook's run said, message by message, and how two runs differ.

Every message of every cell counts, those included that a later one replaced. Only what must differ between two runs
is made equal: object addresses and the paths of temporary folders. Text of one stream is joined, since a kernel cuts
it up by the clock; everything else keeps its order and number.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_MUST_DIFFER = (
    (re.compile(r"0x[0-9a-f]{6,16}"), "0xADDRESS"),
    (re.compile(r"/tmp/ipykernel_\d+/"), "/tmp/ipykernel_N/"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "IDENTIFIER"),
)
_NO_OUTPUT = {"status", "execute_input"}


def normalised(text: str) -> str:
    if len(text) > 100_000:  # bulk data holds nothing that must differ, and searching it is slow
        return text
    for pattern, replacement in _MUST_DIFFER:
        text = pattern.sub(replacement, text)
    return text


@dataclass
class CellTranscript:
    """The output of one cell: how many messages of each type, a digest of them all, and the first few in full."""

    counts: Counter[str] = field(default_factory=Counter)
    streams: dict[str, str] = field(default_factory=dict)
    size: int = 0
    first: list[str] = field(default_factory=list)
    _digest: Any = field(default_factory=hashlib.sha256, repr=False)

    def add(self, message: Mapping[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            self.streams[content["name"]] = self.streams.get(content["name"], "") + content["text"]
            self.size += len(content["text"])
            return
        self.counts[kind] += 1
        if kind in _NO_OUTPUT:
            return
        text = normalised(json.dumps([kind, _comparable(content)], sort_keys=True))
        self._digest.update(text.encode())
        for buffer in message.get("buffers") or ():
            self._digest.update(bytes(buffer))
        self.size += len(text)
        if len(self.first) < 20:
            self.first.append(text if len(text) < 2000 else f"{text[:200]}... ({len(text)} characters)")

    @property
    def digest(self) -> str:
        return str(self._digest.hexdigest())


def _comparable(content: Mapping[str, Any]) -> dict[str, Any]:
    """A message's content without the identifiers that are drawn at random."""
    kept = {name: value for name, value in content.items() if name not in {"transient", "comm_id"}}
    transient = content.get("transient") or {}
    return {**kept, "has_display_id": "display_id" in transient}


@dataclass
class Transcript:
    """All cells of one run, by their index in the notebook."""

    cells: dict[int, CellTranscript] = field(default_factory=dict)

    def add(self, cell_index: int, message: Mapping[str, Any]) -> None:
        self.cells.setdefault(cell_index, CellTranscript()).add(message)

    @property
    def messages(self) -> int:
        return sum(sum(cell.counts.values()) for cell in self.cells.values())

    @property
    def megabytes(self) -> float:
        return sum(cell.size for cell in self.cells.values()) / 1e6


def differences(expected: Transcript, actual: Transcript) -> Iterator[str]:
    """One sentence for each way in which `actual` is not `expected`."""
    for index in sorted(expected.cells.keys() | actual.cells.keys()):
        left, right = expected.cells.get(index), actual.cells.get(index)
        if left is None or right is None:
            yield f"cell {index} ran in one of the two only"
            continue
        if left.counts != right.counts:
            yield f"cell {index}: {dict(left.counts)} became {dict(right.counts)}"
        for name in sorted(left.streams.keys() | right.streams.keys()):
            one, two = normalised(left.streams.get(name, "")), normalised(right.streams.get(name, ""))
            if one != two:
                yield f"cell {index}: {name} {_shown(one)} became {_shown(two)}"
        if left.digest != right.digest:
            pairs = [(a, b) for a, b in zip(left.first, right.first, strict=False) if a != b]
            yield f"cell {index}: " + (f"{pairs[0][0]} became {pairs[0][1]}" if pairs else "messages differ further on")


def _shown(text: str) -> str:
    return repr(text if len(text) < 400 else f"{text[:400]}...")
