"""The end of an allocation: when a person is warned of it, what a queue says, and which times count as one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from openai4s_provisioner.orchestration.models import Allocation, ExternalHandle, Phase
from openai4s_provisioner.orchestration.notes import NoteEnd, NoteWaiting, notes_of
from openai4s_provisioner.orchestration.ports import Observation, Observed
from openai4s_provisioner.orchestration.readiness import Queue
from openai4s_provisioner.orchestration.walltime import (
    MOVED_S,
    End,
    Wait,
    WalltimeNotice,
    WalltimeState,
    WarnOfEnd,
    WithdrawWarning,
    decide,
    most_extension_s,
)

END = End("w", ends_at=10_000.0, warned_for=None, granted_at=0.0, warn_s=600.0)
PENDING = Allocation("a", "w", 1, "t" * 32, "fake", Phase.PENDING, 0.0, handle=ExternalHandle("fake", "1"))
RUNNING = replace(PENDING, phase=Phase.ACTIVE, granted_at=0.0)


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    os.environ.setdefault("TZ", "UTC")
    time.tzset()


def test_a_person_is_warned_once_for_each_end() -> None:
    assert decide(END, 9_399.0) == Wait(9_400.0)
    assert decide(END, 9_400.0) == WarnOfEnd(10_000.0)
    assert decide(replace(END, warned_for=10_000.0), 9_500.0) == Wait()
    assert decide(replace(END, warned_for=10_000.0), 10_500.0) == Wait(), "the backend ends it, nobody here"


def test_an_end_that_moves_away_is_taken_back_and_announced_again() -> None:
    moved = replace(END, ends_at=13_600.0, warned_for=10_000.0)
    assert decide(moved, 9_500.0) == WithdrawWarning()
    assert decide(replace(moved, warned_for=None), 9_500.0) == Wait(13_000.0)
    assert decide(replace(moved, warned_for=None), 13_000.0) == WarnOfEnd(13_600.0)
    assert decide(replace(END, ends_at=10_060.0, warned_for=10_000.0), 9_500.0) == WarnOfEnd(10_060.0)


def test_an_end_that_is_no_longer_known_is_taken_back() -> None:
    assert decide(replace(END, ends_at=None), 1.0) == Wait()
    assert decide(replace(END, ends_at=None, warned_for=10_000.0), 1.0) == WithdrawWarning()


def test_a_short_life_is_not_warned_of_at_its_beginning() -> None:
    short = replace(END, ends_at=100.0)
    assert decide(short, 1.0) == Wait(50.0)
    assert decide(short, 50.0) == WarnOfEnd(100.0)


def test_how_much_longer_is_what_the_profile_leaves_in_whole_minutes() -> None:
    assert most_extension_s(7200, 1_000.0, 4_600.0) == 3600
    assert most_extension_s(7200, 1_020.0, 4_600.0) == 3600, "granted is seen later than it was"
    assert most_extension_s(3650, 1_000.0, 4_600.0) == 0
    assert most_extension_s(60, 1_000.0, 4_600.0) == 0
    assert most_extension_s(7200, None, 4_600.0) == most_extension_s(7200, 1_000.0, None) == 0


def test_an_end_that_is_computed_twice_is_one_end() -> None:
    assert decide(replace(END, warned_for=10_000.0 - MOVED_S), 9_500.0) == Wait()
    seen = Observation(Observed.RUNNING, ends_at=10_000.0)
    assert notes_of(RUNNING, seen, (), 1.0) == (NoteEnd(10_000.0, 0),)
    assert notes_of(replace(RUNNING, ends_at=10_002.0), seen, (), 1.0) == ()
    assert notes_of(replace(RUNNING, ends_at=10_060.0), seen, (), 1.0) == (NoteEnd(10_000.0, 0),)
    assert notes_of(PENDING, replace(seen, state=Observed.PENDING), (), 1.0) == ()


def test_the_words_of_a_warning_say_what_can_be_done() -> None:
    notice = WalltimeNotice("w", WalltimeState.WARNING, 10_000.0, 600.0, can_be_extended=True)
    assert "Extend it, or save your work." in notice.sentence
    assert replace(notice, can_be_extended=False).sentence.endswith("whatever runs in it. Save your work.")
    event = notice.as_event("k")
    assert (event["state"], event["ends_at"], event["seconds_left"]) == ("warning", "1970-01-01T02:46:40+00:00", 600.0)
    assert "now runs until" in WalltimeNotice("w", WalltimeState.WITHDRAWN, 10_000.0).sentence


# -- while it waits ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("utc")
def test_the_queue_says_why_where_and_until_when() -> None:
    as_of = 14 * 3600.0 + 120
    assert Queue().words == ""
    assert Queue("other requests come first").words == "other requests come first"
    told = Queue("no machine is free", 3, 14 * 3600.0 + 1200, as_of).words
    assert told == "no machine is free; position 3; estimated 14:20, as of 14:02"
    assert Queue("x", None, 86400.0 + 600, as_of).words == "x; estimated 1970-01-02 00:10, as of 14:02"


def test_an_estimate_is_written_when_it_moves_and_now_and_then() -> None:
    known = replace(PENDING, waiting="busy", estimated_start=5_000.0, estimate_as_of=1_000.0)
    seen = Observation(Observed.PENDING, waiting="busy", estimated_start=5_030.0)
    assert notes_of(known, seen, (), 1_100.0) == ()
    assert notes_of(known, seen, (), 1_300.0) == (NoteWaiting("busy", "", 5_030.0, None),), "it still holds"
    assert notes_of(known, replace(seen, estimated_start=5_060.0), (), 1_100.0) != ()
    assert notes_of(known, replace(seen, estimated_start=None), (), 1_100.0) != ()
    assert notes_of(known, replace(seen, position=2), (), 1_100.0) == (NoteWaiting("busy", "", 5_030.0, 2),)
