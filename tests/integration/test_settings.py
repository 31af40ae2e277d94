"""``jupyter openai4s settings``: a site's administrator reads what counts, and what is wrong, before anybody starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CLI = [sys.executable, "-m", "openai4s_provisioner.jupyter.cli", "settings"]


def told(place: Any, content: str | None = None) -> subprocess.CompletedProcess[str]:
    path = place.root / "site.toml"
    if content is not None:
        path.write_text(content)
    options = [] if content is None else ["--cluster-toml", str(path)]
    return subprocess.run([*CLI, *options], text=True, capture_output=True, timeout=60, check=False)


def state_of(place: Any) -> Path:
    return Path(place.root) / "home/.local/state/openai4s"


def test_without_a_file_it_says_where_it_looked_and_makes_nothing(place: Any) -> None:
    answer = told(place)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "none found: one profile. Looked for openai4s/cluster.toml in " in answer.stdout
    assert f"state_dir:         {state_of(place)}\n" in answer.stdout
    assert "worker_listen:     no port is opened\n" in answer.stdout
    assert "profile default:   local: can be asked for\n" in answer.stdout
    assert not state_of(place).exists()


def test_each_profile_is_told_what_keeps_it_from_being_served(place: Any) -> None:
    answer = told(
        place,
        "[profiles.good]\n[profiles.odd]\ncolour = 1\n[profiles.away]\nbackend = 'cloud'\n"
        "[profiles.far]\ntransport = 'tcp'\n",
    )
    assert (answer.returncode, answer.stderr) == (1, "")
    lines = dict(line.split(": ", 1) for line in answer.stdout.splitlines() if line.startswith("profile "))
    assert lines["profile good"].endswith("local: can be asked for")
    assert "site.toml, line 3" in lines["profile odd"]
    assert "'colour'" in lines["profile odd"]
    assert "'cloud'" in lines["profile away"]
    assert "not installed" in lines["profile away"]
    assert "worker_listen" in lines["profile far"]


@pytest.mark.parametrize(
    ("content", "says"),
    [("[profiles.x]\ncpus = 'many'\n", "line 2: profiles.x.cpus"), ("[backends.lokal]\n", "[backends.lokal] names")],
)
def test_a_file_that_cannot_be_used_is_one_sentence(place: Any, content: str, says: str) -> None:
    answer = told(place, content)
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1
    assert says in answer.stderr
