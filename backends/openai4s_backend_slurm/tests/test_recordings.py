"""Every recording of a real cluster, of two versions, and what this backend makes of it."""

from __future__ import annotations

import pytest

from openai4s_backend_slurm import parse
from openai4s_backend_slurm.script import job_name

from .replay import FOLDER, recordings, verdict

RECORDINGS = recordings()
EXPECTED = dict(line.split(" => ", 1) for line in (FOLDER / "expected.txt").read_text("utf-8").splitlines())


def test_every_recording_has_its_line() -> None:
    assert set(RECORDINGS) == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(RECORDINGS))
def test_a_recording_is_understood_as_it_was_meant(name: str) -> None:
    assert verdict(RECORDINGS[name]) == EXPECTED[name]


@pytest.mark.parametrize("name", sorted(RECORDINGS))
def test_what_was_asked_in_another_format_gives_no_job_of_ours(name: str) -> None:
    """Were a command replaced by one that prints something else, nothing would be taken for one of our jobs."""
    recording = RECORDINGS[name]
    for text in (recording["stdout"], recording["stderr"]):
        assert not [row for row in parse.accounting_rows(text) if row.name.startswith(job_name(""))]
        assert not [row for row in parse.queue_rows(text) if row.name.startswith(job_name(""))]
