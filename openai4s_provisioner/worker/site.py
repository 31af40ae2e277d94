"""What a backend tells its workers of the machines they run on, through their environment: where folders lie there, and
which variables the site itself has set for the allocation.

Two variables, both JSON: OPENAI4S_PATH_MAP, pairs of (a folder on the server, where this machine has it), and
OPENAI4S_SITE_ENVIRONMENT, triples of (name, what it was before or null, what it is now). Neither may hold a secret.
Pure; a map is applied once to each thing: to what an attempt's file says, and to each launch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PATH_MAP, SITE_ENVIRONMENT = "OPENAI4S_PATH_MAP", "OPENAI4S_SITE_ENVIRONMENT"


@dataclass(frozen=True)
class Site:
    pairs: tuple[tuple[str, str], ...] = ()  # the longest folder first
    changes: tuple[tuple[str, str | None, str], ...] = ()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Site:
        """Raises ValueError."""
        pairs = [(str(ours), str(here)) for ours, here in json.loads(environ.get(PATH_MAP, "[]"))]
        changes = json.loads(environ.get(SITE_ENVIRONMENT, "[]"))
        return cls(
            tuple(sorted(pairs, key=lambda pair: len(pair[0]), reverse=True)),
            tuple((str(name), before, str(after)) for name, before, after in changes),
        )

    def path(self, path: str) -> str:
        """Where this machine has what the server has at `path`. What is no path stays as it is."""
        for ours, here in self.pairs:
            if path == ours or path.startswith(ours.rstrip("/") + "/"):
                rest = path[len(ours.rstrip("/")) :]
                return (here.rstrip("/") + rest) or "/"
        return path

    def attempt(self, value: dict[str, Any]) -> dict[str, Any]:
        """An attempt's file with this machine's paths, but for its launch. What is masked there is masked here too."""
        if not self.pairs:
            return value
        sandbox = {name: self._paths(entry) for name, entry in value["sandbox"].items()}
        sandbox["masked"] = [*sandbox.get("masked", ()), *value["sandbox"].get("masked", ())]
        workspace = {**value["workspace"], "path": self.path(value["workspace"]["path"])}
        return {**value, "sandbox": sandbox, "workspace": workspace}

    def launch(self, launch: Mapping[str, Any]) -> dict[str, Any]:
        """A kernel or a command as it is started here."""
        return {
            **launch,
            "argv": [self._word(word) for word in launch["argv"]],
            "cwd": self.path(launch["cwd"]),
            "env": self._environment(launch["env"]),
        }

    def _paths(self, entry: Any) -> Any:
        if isinstance(entry, str):
            return self.path(entry)
        return [self._paths(each) for each in entry] if isinstance(entry, (list, tuple)) else entry

    def _word(self, word: str) -> str:
        """A path, or an option whose value is one."""
        name, equals, value = word.partition("=")
        return f"{name}={self.path(value)}" if equals and name.startswith("-") else self.path(word)

    def _environment(self, asked: Mapping[str, str]) -> dict[str, str]:
        here = {name: ":".join(self.path(part) for part in value.split(":")) for name, value in asked.items()}
        for name, before, after in self.changes:
            here[name] = _changed(here.get(name), before, after)
        return here


def _changed(value: str | None, before: str | None, after: str) -> str:
    """What was put before or behind a list of folders is put there here as well; anything else replaces the value."""
    if value and before:
        if after.endswith(before):
            return after[: -len(before)] + value
        if after.startswith(before):
            return value + after[len(before) :]
    return after
