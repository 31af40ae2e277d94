"""Logs in whole lines, each with the place behind it: read on from there, over breaks, ranks, attempts and ends."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openai4s_provisioner.orchestration.attempt import KEPT_LOG_BYTES
from openai4s_provisioner.orchestration.models import Kind
from openai4s_provisioner.transport.bounded_log import LogWriter
from openai4s_provisioner.workload_logs import LogReader, Place


class Site:
    """The folders of one workload, and what its workers would write there."""

    def __init__(self, root: Path, kind: Kind = Kind.SESSION) -> None:
        self.settings: Any = SimpleNamespace(state_dir=root / "state", exchange_dir=root / "exchange")
        self.workload: Any = SimpleNamespace(workload_id="w", kind=kind)
        self._readers: list[LogReader] = []
        (root / "state" / "logs").mkdir(parents=True)

    def attempt(self, epoch: int = 1) -> Any:
        self.folder(epoch).mkdir(parents=True, exist_ok=True)
        return SimpleNamespace(allocation_id=f"a{epoch}", epoch=epoch)

    def folder(self, epoch: int = 1) -> Path:
        folder: Path = self.settings.exchange_dir / "attempts" / f"a{epoch}"
        return folder

    def write(self, text: str, rank: int = 0, epoch: int = 1) -> None:
        with (self.folder(epoch) / f"worker-{rank}.log").open("a", encoding="utf-8") as file:
            file.write(text)

    def keep(self, text: str, epoch: int = 1) -> None:
        """What is kept of an attempt that failed."""
        (self.settings.state_dir / "logs" / f"a{epoch}.worker-0.log").write_text(text)
        shutil.rmtree(self.folder(epoch))

    def reader(self, ranks: Sequence[int] = (0,), after: Place | None = None) -> LogReader:
        self._readers.append(LogReader(self.settings, self.workload, ranks, after))
        return self._readers[-1]

    def close(self) -> None:
        for reader in self._readers:
            reader.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def texts(found: Sequence[Any]) -> list[str]:
    return [each.text for each in found]


def test_a_line_is_told_once_it_is_whole(site: Site) -> None:
    attempt, reader = site.attempt(), site.reader()
    assert reader.read(attempt, False) == []
    site.write("one\ntw")
    assert texts(reader.read(attempt, False)) == ["one"]
    assert reader.read(attempt, False) == []
    site.write("o\n\nthree")
    assert texts(reader.read(attempt, False)) == ["two", ""]
    assert texts(reader.read(attempt, True)) == ["three"], "nothing follows it any more"
    assert reader.read(attempt, True) == []


def test_after_every_line_the_reading_goes_on_with_the_next(site: Site) -> None:
    attempt = site.attempt()
    site.write("äne\nzwö\ndreï\n")
    first = site.reader().read(attempt, False)
    for number, line in enumerate(first):
        place = Place.parse(str(line.place))
        assert texts(site.reader(after=place).read(attempt, False)) == texts(first[number + 1 :])


def test_what_was_written_over_and_over_is_shown_as_it_ended(site: Site) -> None:
    attempt = site.attempt()
    site.write("10 %\r50 %\r100 %\r\n")
    assert texts(site.reader().read(attempt, False)) == ["100 %"]


def test_several_ranks_are_one_log_by_their_time_with_their_number(site: Site) -> None:
    attempt, reader = site.attempt(), site.reader(ranks=(0, 1))
    site.write("2026-11-29 10:00:01,000 INFO a\n2026-11-29 10:00:04,000 INFO d\n")
    site.write("2026-11-29 10:00:02,000 INFO b\n  and more of b\n2026-11-29 10:00:03,000 INFO c\n", rank=1)
    found = reader.read(attempt, False)
    assert [text[:4] + text[-1] for text in texts(found)] == ["[0] a", "[1] b", "[1] b", "[1] c", "[0] d"]
    for number, line in enumerate(found):
        again = site.reader(ranks=(0, 1), after=line.place).read(attempt, False)
        assert texts(again) == texts(found[number + 1 :]), "of each rank what had not come"
    assert texts(site.reader(ranks=(1,)).read(attempt, False))[0].endswith("INFO b"), "one alone needs no number"


def test_what_is_written_while_a_session_ends_is_read_though_its_folder_is_gone(site: Site) -> None:
    attempt, reader = site.attempt(), site.reader()
    site.write("it runs\n")
    assert texts(reader.read(attempt, False)) == ["it runs"]
    site.write("goodbye\n")
    shutil.rmtree(site.folder())
    assert texts(reader.read(attempt, True)) == ["goodbye"]


def test_a_lost_attempt_is_read_to_its_end_and_the_next_from_its_beginning(site: Site) -> None:
    first, reader = site.attempt(1), site.reader()
    site.write("one\n")
    place = reader.read(first, False)[-1].place
    site.write("it breaks\n")
    second = site.attempt(2)
    site.write("again\n", epoch=2)
    assert texts(reader.read(second, False)) == [
        "it breaks",
        "-- attempt 2: the one before it was lost --",
        "again",
    ]
    assert texts(site.reader(after=place).read(second, False))[-1] == "again", (
        "a stream that broke before goes on there"
    )


def test_of_a_failed_attempt_the_kept_part_is_gone_on_with_and_nothing_comes_twice(site: Site) -> None:
    attempt = site.attempt()
    site.write("one\ntwo\n")
    first = site.reader().read(attempt, False)[0]
    site.keep("one\ntwo")
    assert texts(site.reader(after=first.place).read(attempt, True)) == ["two"]


def test_of_one_that_was_cut_when_it_was_kept_nothing_comes_twice(site: Site) -> None:
    attempt = site.attempt()
    site.write("one\n" * KEPT_LOG_BYTES)
    first = site.reader().read(attempt, False)[0]
    site.keep("one\n" * (KEPT_LOG_BYTES // 4))
    assert site.reader(after=first.place).read(attempt, True) == []


def test_of_a_long_log_the_last_part_comes_first_in_whole_lines(site: Site) -> None:
    attempt = site.attempt()
    site.write("".join(f"line {number:09d}\n" for number in range(200_000)))
    reader = site.reader()
    found = texts(reader.read(attempt, False))
    assert found[-1] == "line 000199999"
    assert all(len(text) == len("line 000000000") for text in found)


def test_a_line_without_an_end_does_not_hold_the_rest_back(site: Site) -> None:
    attempt, reader = site.attempt(), site.reader(after=Place(1, (0,)))
    site.write("x" * (3 << 20) + "\nnext\n")
    found: list[str] = []
    for _ in range(4):
        found += texts(reader.read(attempt, False))
    assert "".join(found[:-1]) == "x" * (3 << 20)
    assert found[-1] == "next"


@pytest.mark.parametrize("text", ["", "1", "1:", ":1", "1:-1", "1:1,", "x:1", "1:1 ", "1:" + "1" * 16, "1:1\n"])
def test_a_place_that_nobody_gave_out_is_none(text: str) -> None:
    assert Place.parse(text) is None


def test_what_a_command_printed_is_gone_on_with_after_its_folder_was_moved(tmp_path: Path) -> None:
    site = Site(tmp_path, Kind.BATCH)
    attempt, reader = site.attempt(), site.reader()
    writer = LogWriter(str(site.folder()), segment_bytes=64, segments=2)
    writer.write(b"one\ntwo\nthr")
    first = reader.read(attempt, False)
    assert texts(first) == ["one", "two"]
    writer.write(b"ee\n" + b"four\n" * 40)
    writer.close()
    later = texts(site.reader(after=first[0].place).read(attempt, True))
    assert "earlier output were dropped" in later[0]
    assert set(later[1:]) == {"four"}
