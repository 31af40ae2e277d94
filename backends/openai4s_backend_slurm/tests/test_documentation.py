"""What an administrator can write is what the administrators' page lists: no key more, no key less."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from checks.parts.place import REPOSITORY
from openai4s_backend_slurm.profiles import SlurmOptions, SlurmProfile

PAGE = (Path(REPOSITORY) / "docs" / "admins.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("### The backend `slurm`\n")[2].partition("\n## ")[0]


def documented(header: str) -> set[str]:
    """The keys in the first column of the table with this header."""
    table = SECTION.partition(header)[2].partition("\n\n")[0]
    return {key for line in table.splitlines()[2:] for key in re.findall(r"`(\w+)`", line.split("|")[1])}


@pytest.mark.parametrize(
    ("kind", "header"), [(SlurmOptions, "| key of `[backends.slurm]` |"), (SlurmProfile, "| key of a profile |")]
)
def test_every_key_is_documented_and_no_other(kind: type[Any], header: str) -> None:
    assert documented(header) == {each.name for each in fields(kind)}


@pytest.mark.parametrize("name", ["deadline_s", "min_interval_s", "isolation_max_age_s"])
def test_the_numbers_that_are_documented_are_the_defaults(name: str) -> None:
    assert f"| `{name}` | {getattr(SlurmOptions(), name):.0f} |" in SECTION
