"""One table of `cluster.toml`, read key by key with types and ranges; what nobody read is refused by name and line.

Every error is one sentence: file, line, key, value, and what to do.
"""

from __future__ import annotations

import difflib
import enum
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from .errors import ConfigError
from .toml_lines import KeyPath, line_of

Choice = TypeVar("Choice", bound=enum.StrEnum)


class Table:
    """A view of one table that remembers which keys were asked for."""

    def __init__(
        self, values: Mapping[str, Any], path: KeyPath, source: Path, lines: dict[KeyPath, int], home: str
    ) -> None:
        self._values = values
        self._path = path
        self._source = source
        self._lines = lines
        self._home = home
        self._asked: set[str] = set()

    def table(self, key: str) -> Table:
        """The sub-table `key`, empty when it is not there."""
        value = self._take(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, value, f"is not a table. Write it as [{'.'.join((*self._path, key))}]")
        return Table(value, (*self._path, key), self._source, self._lines, self._home)

    def tables(self, key: str) -> Iterator[tuple[str, Table]]:
        """Every named table below `key`."""
        parent = self.table(key)
        for name in parent._values:
            yield name, parent.table(name)

    def text(self, key: str, default: str) -> str:
        value = self._take(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, value, "is not text. Put it in quotes")
        if any(ord(character) < 32 for character in value):
            raise self.wrong(key, value, "holds a control character. Use one plain line")
        return value

    def whole(self, key: str, default: int, least: int, most: int) -> int:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, value, f"is not a whole number. Use one from {least} to {most}")
        if not least <= value <= most:
            raise self.wrong(key, value, f"is out of range. Use a whole number from {least} to {most}")
        return value

    def number(self, key: str, default: float, least: float, most: float) -> float:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, value, f"is not a number. Use one from {least:g} to {most:g}")
        if not math.isfinite(value) or not least <= value <= most:
            raise self.wrong(key, value, f"is out of range. Use a number from {least:g} to {most:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "is neither true nor false. Write one of them, without quotes")
        return value

    def choice(self, key: str, default: Choice) -> Choice:
        value = self._take(key, default.value)
        known = [member.value for member in type(default)]
        if value not in known:
            raise self.wrong(key, value, f"is not known. Choose one of {', '.join(known)}")
        return type(default)(value)

    def paths(self, key: str) -> tuple[str, ...]:
        """A list of absolute paths; a leading ``~/`` is the person's home folder."""
        value = self._take(key, [])
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise self.wrong(key, value, 'is not a list of paths. Write it as ["/path/one", "/path/two"]')
        return tuple(self._path_entry(key, entry) for entry in value)

    def rest(self) -> dict[str, Any]:
        """Every key that nobody asked for, unread."""
        left = {key: value for key, value in self._values.items() if key not in self._asked}
        self._asked.update(left)
        return left

    def refuse_unknown(self) -> None:
        """Raise for the first key that nobody asked for."""
        for key, value in self._values.items():
            if key not in self._asked:
                near = difflib.get_close_matches(key, self._asked, n=1)
                hint = f"Did you mean {near[0]}?" if near else "Remove it"
                raise self.wrong(key, value, f"is not a key that is known here. {hint}")

    def wrong(self, key: str, value: object, why: str) -> ConfigError:
        path = (*self._path, key)
        shown = "" if isinstance(value, dict) else f" = {_shown(value)}"
        end = "" if why.endswith("?") else "."
        return ConfigError(f"{self._source}, line {line_of(self._lines, path)}: {'.'.join(path)}{shown} {why}{end}")

    def wrong_here(self, value: str, why: str) -> ConfigError:
        """An error about this table itself rather than one of its keys."""
        return ConfigError(f"{self._source}, line {line_of(self._lines, self._path)}: {value!r} {why}.")

    def _take(self, key: str, default: object) -> Any:
        self._asked.add(key)
        return self._values.get(key, default)

    def _path_entry(self, key: str, entry: str) -> str:
        full = f"{self._home}/{entry[2:]}" if entry.startswith("~/") and self._home else entry
        if not full.startswith("/") or "\0" in full:
            raise self.wrong(key, entry, "is not an absolute path. Begin it with '/' or '~/'")
        return full


def _shown(value: object) -> str:
    told = repr(value)
    if isinstance(value, bool):
        told = told.lower()
    return told if len(told) <= 80 else told[:77] + "..."
