"""A site whose commands are small programs of ours: wrappers with habits, and a controller that is only a file.

The queue is a text file of rows, so that what was really submitted can be counted; every call is written down.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from openai4s_backend_slurm.backend import SlurmBackend, create_backend

_HEAD = """#!{python} -IS
import json, os, sys, time
base = {base!r}
argv = sys.argv[1:]
with open(base + "/calls", "a") as calls:
    calls.write(json.dumps([{name!r}, *argv]) + "\\n")
def option(name):
    return next((word.partition("=")[2] for word in argv if word.startswith("--" + name + "=")), "")
def enqueue(state="PENDING"):
    with open(base + "/queue", "a+") as queue:
        queue.seek(0)
        number = 4242 + len(queue.readlines())
        queue.write(f"{{number}}|{{state}}|{{option('job-name')}}|1|N/A|N/A||cpu|1|None\\n")
    return number
def seen(word):
    with open(base + "/calls") as calls:
        return sum(json.loads(line)[0] == word for line in calls)
"""
SBATCH = "print(enqueue())"
SQUEUE = """
rows = open(base + "/queue").read().splitlines() if os.path.exists(base + "/queue") else []
name = option("name")
print("JOBID|STATE|NAME|NODES|START_TIME|END_TIME|NODELIST|PARTITION|PRIORITY|REASON")
print("\\n".join(row for row in rows if not name or row.split("|")[2] == name))
"""
NO_ACCOUNTING = "sys.exit('Slurm accounting storage is disabled')"


@dataclass
class FakeSite:
    base: Path
    options: dict[str, object] = field(default_factory=dict)

    def has(self, **commands: str) -> None:
        """Python lines for each command; `argv`, `option`, `enqueue` and `seen` are at hand."""
        for name, body in commands.items():
            path = self.base / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(_HEAD.format(python=sys.executable, base=str(self.base), name=name) + body + "\n")
            path.chmod(stat.S_IRWXU)

    @property
    def queue(self) -> list[str]:
        path = self.base / "queue"
        return path.read_text().splitlines() if path.exists() else []

    def calls(self, name: str) -> list[list[str]]:
        path = self.base / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call[1:] for call in map(json.loads, lines) if call[0] == name]

    @contextmanager
    def backend(self) -> Iterator[SlurmBackend]:
        backend = create_backend(
            state_dir=self.base / "state",
            exchange_dir=self.base / "exchange",
            options={"min_interval_s": 0.0, "deadline_s": 5.0, **self.options},
        )
        yield backend


def fake_site(base: Path, **commands: str) -> FakeSite:
    """Everything works, except for the commands that are given."""
    site = FakeSite(base)
    site.has(**{"sbatch": SBATCH, "squeue": SQUEUE, "sacct": NO_ACCOUNTING, "scancel": "", "scontrol": "", **commands})
    site.options["commands"] = {name: str(base / "bin" / name) for name in os.listdir(base / "bin")}
    return site
