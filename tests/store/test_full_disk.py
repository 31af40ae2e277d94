"""A disk that is really full: one sentence with the path, nothing lost, and everything goes on once there is room."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.errors import StateError
from openai4s_provisioner.orchestration.models import Phase
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.store import Store
from openai4s_provisioner.testing.control_lab import OWNER, ControlLab, in_lab
from openai4s_provisioner.testing.faulty_backends import ManualClock, ObedientBackend

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small file system")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Nothing is left, not for one byte."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return filler


async def open_many(lab: ControlLab) -> None:
    """What fits into the pages that are there already still fits."""
    for number in range(50):
        await lab.open(f"more-{number}")


async def note_much(lab: ControlLab, workload_id: str) -> None:
    for _ in range(200):
        await lab.store.run(Store.record, workload_id, "note", OWNER, None, "x" * 4000, lab.clock())


def test_a_full_disk_is_one_sentence_and_loses_nothing(small_disk: Path) -> None:
    clock = ManualClock()
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        before = await lab.situation(opened)
        filler = await asyncio.to_thread(fill, small_disk)
        with pytest.raises(StateError) as caught:
            await open_many(lab)
        sentence = str(caught.value)
        assert str(lab.state_dir) in sentence
        assert "disk is full" in sentence
        assert len(sentence.splitlines()) == 1
        await lab.turns(3)
        assert await lab.situation(opened) == before, "what runs is left alone"
        await asyncio.to_thread(filler.unlink)
        await lab.sessions.request_stop(opened.workload_id, Reason.USER_CANCELLED, OWNER)
        for _ in range(10):
            await lab.turns()
            clock.forward(10.0)
        assert (await lab.situation(opened)).workload.phase is Phase.CANCELLED
        assert backend.running == [] or all(each.token != before.allocation.token for each in backend.running)

    in_lab(small_disk, scenario, backend, clock=clock)


def test_a_stop_that_cannot_be_written_is_told_and_can_be_repeated(small_disk: Path) -> None:
    clock = ManualClock()
    backend = ObedientBackend(clock)

    async def scenario(lab: ControlLab) -> None:
        opened = await lab.active_session("k1")
        filler = await asyncio.to_thread(fill, small_disk)
        with pytest.raises(StateError, match="disk is full"):
            await note_much(lab, opened.workload_id)
        with pytest.raises(StateError, match="disk is full"):
            await lab.sessions.request_stop(opened.workload_id, Reason.USER_CANCELLED, OWNER, "y" * 8000)
        assert (await lab.situation(opened)).allocation.phase is Phase.ACTIVE
        await asyncio.to_thread(filler.unlink)
        assert await lab.sessions.request_stop(opened.workload_id, Reason.USER_CANCELLED, OWNER)

    in_lab(small_disk, scenario, backend, clock=clock)


def test_a_state_file_that_cannot_be_made_on_a_full_disk_leaves_nothing_half_made(small_disk: Path) -> None:
    filler = fill(small_disk)
    with pytest.raises(StateError) as caught:
        Store(small_disk / "state")
    assert str(small_disk) in str(caught.value)
    assert not list((small_disk / "state").glob("*")) if (small_disk / "state").exists() else True
    filler.unlink()
    Store(small_disk / "state").close()
