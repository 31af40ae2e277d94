"""A log of bounded size: what a reader that follows it gets, and what it is told that it missed."""

from __future__ import annotations

import os
from pathlib import Path

from openai4s_provisioner.transport.bounded_log import LogWriter, read_log, segments_in


def all_of(*folders: Path) -> tuple[bytes, int]:
    data, position, missed = b"", 0, 0
    while piece := read_log([str(folder) for folder in folders], position).data:
        found = read_log([str(folder) for folder in folders], position)
        data, position, missed = data + piece, found.position, missed + found.missed
    return data, missed


def test_what_is_written_is_read_from_any_position(tmp_path: Path) -> None:
    writer = LogWriter(str(tmp_path), segment_bytes=10, segments=10)
    for piece in (b"0123", b"4567890", b"", b"abcdefghijklmnopqrst"):
        writer.write(piece)
    assert all_of(tmp_path) == (b"01234567890abcdefghijklmnopqrst", 0)
    assert read_log([str(tmp_path)], 12, 3).data == b"bcd"
    assert read_log([str(tmp_path)], writer.written) == (b"", 31, 0)
    writer.close()


def test_past_its_bound_the_oldest_goes_and_the_reader_is_told(tmp_path: Path) -> None:
    writer = LogWriter(str(tmp_path), segment_bytes=10, segments=3)
    writer.write(bytes(range(65, 65 + 26)) * 4)
    assert len(segments_in(str(tmp_path))) <= 4
    data, missed = all_of(tmp_path)
    assert len(data) + missed == writer.written == 104
    assert missed > 0
    assert data.endswith(b"XYZ")
    writer.close()


def test_a_reader_finds_its_place_again_after_the_files_were_moved(tmp_path: Path) -> None:
    live, kept = tmp_path / "live", tmp_path / "kept"
    live.mkdir()
    kept.mkdir()
    writer = LogWriter(str(live), segment_bytes=10)
    writer.write(b"zyxwvutsrqabcdef")
    first = read_log([str(live), str(kept)], 0, 4)
    writer.close()
    for path in sorted(live.iterdir()):
        os.rename(path, kept / path.name)
        assert read_log([str(live), str(kept)], first.position) == (b"vutsrq", 10, 0), "also half-way"
    assert all_of(live, kept) == (b"zyxwvutsrqabcdef", 0)


def test_a_folder_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    writer = LogWriter(str(tmp_path / "missing"))
    writer.write(b"lost")
    assert writer.written == 4
    (tmp_path / "missing").mkdir()
    writer.write(b"kept")
    assert all_of(tmp_path / "missing") == (b"kept", 4)
    writer.close()
