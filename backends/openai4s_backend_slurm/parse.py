"""Reads what the scheduler's commands print. Pure; never raises, whatever it is given, and invents no job.

A line that is not understood is left out: what is missing is then asked elsewhere, and counts as nobody's end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .states import Exit

# The last field of each may hold anything, separators included.
QUEUE_FORMAT = "%A|%T|%j|%D|%S|%e|%N|%P|%Q|%r"
ACCOUNTING_FORMAT = "JobIDRaw,State,ExitCode,Start,End,NodeList,JobName"
_QUEUE_FIELDS, _ACCOUNTING_FIELDS = 10, 7
_PARSABLE = re.compile(r"(\d{1,10})(?:;([A-Za-z0-9][A-Za-z0-9_.-]*))?")
_PLAIN = re.compile(r"Submitted batch job (\d{1,10})(?: on cluster ([A-Za-z0-9][A-Za-z0-9_.-]*))?")
_HOSTS_MOST = 4096


@dataclass(frozen=True)
class JobName:
    """What the scheduler calls a job: its number, and the cluster where there are several."""

    number: int
    cluster: str = ""


@dataclass(frozen=True)
class QueueRow:
    number: int
    state: str
    name: str
    asks_nodes: int | None
    starts_at: float | None  # of a job that waits: expected
    ends_at: float | None
    nodes: str
    partition: str
    priority: int | None
    reason: str


@dataclass(frozen=True)
class AccountingRow:
    number: int
    state: str
    exit: Exit | None
    started_at: float | None
    ended_at: float | None
    nodes: str
    name: str


def submitted(output: str) -> JobName | None:
    """The job in what a submission printed, among whatever a wrapper prints besides. None when that is not certain."""
    lines = [line.strip() for line in output.splitlines()]
    told = {JobName(int(found[1]), found[2] or "") for line in lines if (found := _PLAIN.search(line))}
    if not told:
        told = {JobName(int(found[1]), found[2] or "") for line in lines if (found := _PARSABLE.fullmatch(line))}
    return told.pop() if len(told) == 1 else None


def is_queue(output: str) -> bool:
    """Whether it is a list of jobs, be it empty: it has its heading, or a row. Anything else has answered nothing."""
    lines = output.splitlines()
    return any(_is_heading(line) for line in lines) or any(_queue_row(line) is not None for line in lines)


def _is_heading(line: str) -> bool:
    return line.startswith("JOBID|") and line.count("|") == _QUEUE_FIELDS - 1


def queue_rows(output: str) -> list[QueueRow]:
    return [row for line in output.splitlines() if (row := _queue_row(line)) is not None]


def _queue_row(line: str) -> QueueRow | None:
    parts = line.split("|", _QUEUE_FIELDS - 1)
    number = number_of(parts[0])
    if len(parts) != _QUEUE_FIELDS or number is None:
        return None
    _, state, name, asks_nodes, starts_at, ends_at, nodes, partition, priority, reason = parts
    return QueueRow(
        number,
        state,
        name,
        number_of(asks_nodes.partition("-")[0]),
        _time(starts_at),
        _time(ends_at),
        _nodes(nodes),
        partition,
        number_of(priority),
        reason.strip(),
    )


def accounting_rows(output: str) -> list[AccountingRow]:
    return [row for line in output.splitlines() if (row := _accounting_row(line)) is not None]


def _accounting_row(line: str) -> AccountingRow | None:
    parts = line.split("|", _ACCOUNTING_FIELDS - 1)
    number = number_of(parts[0])
    if len(parts) != _ACCOUNTING_FIELDS or number is None:
        return None
    _, state, exit_, started_at, ended_at, nodes, name = parts
    return AccountingRow(number, state, exit_of(exit_), _time(started_at), _time(ended_at), _nodes(nodes), name)


def exit_of(text: str) -> Exit | None:
    """Of ``code:signal``."""
    code, colon, signal = text.strip().partition(":")
    if not colon or not _is_small(code) or not _is_small(signal):
        return None
    return Exit(int(code), int(signal))


def exit_in_details(output: str, number: int) -> Exit | None:
    """In the one-line details of exactly this job."""
    if not re.search(rf"\bJobId={number}\b", output):
        return None
    found = re.search(r"\bExitCode=(\d{1,5}:\d{1,5})\b", output)
    return exit_of(found.group(1)) if found else None


def nodes_granted(output: str) -> int | None:
    """The most machines that a job of this partition may have, in its one-line details; None when that is not said."""
    found = [re.search(rf"\b{key}=(\d{{1,9}})\b", output) for key in ("MaxNodes", "TotalNodes")]
    told = [int(each[1]) for each in found if each is not None]
    return min(told, default=None)


def recorded_exit(text: str) -> tuple[Exit, int | None] | None:
    """What the batch script wrote of its own end: the exit code, and the number of its job."""
    parts = text.split()
    if not parts or not _is_small(parts[0]):
        return None
    return Exit(int(parts[0]), 0), number_of(parts[1]) if len(parts) > 1 else None


def hosts(nodes: str) -> tuple[str, ...]:
    """The machines of ``a[1-2],b[03,5]x``; what is not understood stays one word. At most a few thousand."""
    found: list[str] = []
    for part in _split(nodes):
        for host in _expanded(part, _HOSTS_MOST - len(found)):
            found.append(host)
    return tuple(found)


def _split(nodes: str) -> Iterable[str]:
    depth, word = 0, ""
    for character in nodes:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth <= 0:
            yield word
            word = ""
        else:
            word += character
    if word:
        yield word


def _expanded(part: str, room: int) -> list[str]:
    found = re.fullmatch(r"([^\[\]]*)\[([0-9,-]+)\](.*)", part)
    if found is None:
        return [part][:room] if part else []
    hosts: list[str] = []
    for piece in found[2].split(","):
        first, dash, last = piece.partition("-")
        if not _is_small(first) or (dash and not _is_small(last)):
            return [part][:room]
        for number in range(int(first), int(last or first) + 1)[: room - len(hosts)]:
            hosts += _expanded(f"{found[1]}{number:0{len(first)}}{found[3]}", room - len(hosts))
    return hosts


def _is_small(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 7


def number_of(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) <= 10 else None


def _time(text: str) -> float | None:
    """Seconds since the epoch; None for what is not known, as in N/A."""
    number = number_of(text.strip())
    return float(number) if number else None


def _nodes(text: str) -> str:
    return "" if text in ("None assigned", "(null)", "N/A", "None") else text.strip()
