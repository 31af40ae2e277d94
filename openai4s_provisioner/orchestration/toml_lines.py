"""Which line of a TOML text a key stands on.

`tomllib` keeps no positions, and an admin who is told "unknown key" without a line has to search. This walks a text
that `tomllib` has already accepted; it validates nothing itself.
"""

from __future__ import annotations

import tomllib
from typing import Any

KeyPath = tuple[str, ...]


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line (from 1) of every table header and key of a valid TOML text, by its full path."""
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    statement, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not statement:
            stripped = line.strip()
            if not stripped or stripped.startswith("#"):
                continue
            if stripped.startswith("["):
                table = _header_path(stripped)
                for depth in range(1, len(table) + 1):  # a header also makes the tables above it
                    lines.setdefault(table[:depth], number)
                continue
            first = number
        statement += line + "\n"
        parsed = _parsed(statement)
        if parsed is not None:  # a value may span lines: only a complete statement parses
            _record(lines, table, parsed, first)
            statement = ""
    return lines


def line_of(lines: dict[KeyPath, int], path: KeyPath) -> int:
    """The line of `path`, or of its nearest parent that stands in the text; 1 when none does."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return 1


def _header_path(header: str) -> KeyPath:
    node: Any = tomllib.loads(header)
    path: list[str] = []
    while node:
        if isinstance(node, list):
            node = node[0]
            continue
        key, node = next(iter(node.items()))
        path.append(key)
    return tuple(path)


def _parsed(statement: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(statement)
    except tomllib.TOMLDecodeError:
        return None


def _record(lines: dict[KeyPath, int], prefix: KeyPath, node: dict[str, Any], line: int) -> None:
    for key, value in node.items():
        lines.setdefault((*prefix, key), line)
        if isinstance(value, dict):
            _record(lines, (*prefix, key), value, line)
