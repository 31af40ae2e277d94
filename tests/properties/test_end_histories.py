"""Random histories of an allocation's end over the real store: looks that are long on their way, extensions, restarts.

What must hold: once an extension is written down, an end from before it is never shown again, whatever lands when.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from openai4s_provisioner.orchestration.models import Allocation, ExternalHandle, LeasePolicy, SessionSpec
from openai4s_provisioner.orchestration.notes import NoteEnd, as_asked, notes_of
from openai4s_provisioner.orchestration.phases import PhaseEvent
from openai4s_provisioner.orchestration.ports import Observation, Observed
from openai4s_provisioner.orchestration.store import NewSession, Store, drivers, schedule

FULL = bool(os.environ.get("OPENAI4S_FULL"))
START = 1000.0
_MEMORY = Path("/dev/shm")


class Look(NamedTuple):
    """A question on its way: what was known when it was asked, and what is answered."""

    asked: Allocation
    answer: Observation


class EndHistories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="o4s-end-", dir=_MEMORY if _MEMORY.is_dir() else None))
        self.ends = [10_000.0]  # every end that the backend ever had; no two are alike
        self.looks: list[Look] = []
        self.writes: list[NoteEnd] = []  # decided, and not yet in the store
        self.extension: int | None = None  # made in the backend, and not yet in the store; its place in `ends`
        self.oldest = 0  # the first of `ends` that may still be shown

    @initialize()
    def open(self) -> None:
        self.store = Store(self.folder)
        drivers.register(self.store, "d", "host", "boot", 1, START)
        spec = SessionSpec("/work", "/work", "python3")
        new = NewSession("w", "a", "t" * 32, "me", "p", "fake", 1, spec, "k", "l", LeasePolicy(), 10)
        self.store.open_session(new, "d", START)
        self.store.handle_known("a", ExternalHandle("fake", "1"))
        self.store.advance("a", PhaseEvent.GRANTED, START)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    # -- what happens

    @rule()
    def a_look_begins(self) -> None:
        self.looks.append(Look(self.row, Observation(Observed.RUNNING, ends_at=self.ends[-1])))

    @precondition(lambda self: self.looks)
    @rule(data=st.data())
    def a_look_lands(self, data: st.DataObject) -> None:
        look = self.looks.pop(data.draw(st.integers(0, len(self.looks) - 1)))
        now = self.row
        seen = as_asked(look.answer, look.asked, now)
        assert seen is not None
        self.writes += [note for note in notes_of(now, seen, (), START) if isinstance(note, NoteEnd)]

    @precondition(lambda self: self.writes)
    @rule(data=st.data())
    def what_a_look_said_is_written(self, data: st.DataObject) -> None:
        note = self.writes.pop(data.draw(st.integers(0, len(self.writes) - 1)))
        schedule.note_end(self.store, "a", note.ends_at, note.extensions)

    @precondition(lambda self: self.extension is None)
    @rule()
    def the_backend_grants_an_extension(self) -> None:
        self._moved(later=True)
        self.extension = len(self.ends) - 1

    @precondition(lambda self: self.extension is not None)
    @rule()
    def the_extension_is_written(self) -> None:
        assert self.extension is not None
        schedule.extended(self.store, self.row, self.ends[self.extension], 60, "me", START)
        self.oldest, self.extension = self.extension, None

    @rule(later=st.booleans())
    def somebody_else_moves_the_end(self, later: bool) -> None:
        self._moved(later)

    @rule()
    def the_process_starts_anew(self) -> None:
        self.store.close()
        self.store = Store(self.folder)
        self.looks, self.writes = [], []

    # -- what must hold

    @invariant()
    def no_end_from_before_an_extension_is_shown_again(self) -> None:
        ends_at = self.row.ends_at if hasattr(self, "store") else None
        assert ends_at is None or ends_at in self.ends[self.oldest :]

    @invariant()
    def a_look_that_nothing_crossed_shows_the_end_of_now(self) -> None:
        if not hasattr(self, "store") or self.extension is not None:
            return
        row = self.row
        for note in notes_of(row, Observation(Observed.RUNNING, ends_at=self.ends[-1]), (), START):
            assert isinstance(note, NoteEnd)
            schedule.note_end(self.store, "a", note.ends_at, note.extensions)
        assert self.row.ends_at == self.ends[-1]
        schedule.note_end(self.store, "a", row.ends_at, row.extensions)  # type: ignore[arg-type] # as it was

    @property
    def row(self) -> Allocation:
        found = self.store.allocation("a")
        assert found is not None
        return found

    def _moved(self, later: bool) -> None:
        step = 100.0 * len(self.ends)
        self.ends.append(10_000.0 + (step if later else -step))


QUICK = settings(
    max_examples=400 if FULL else 40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_an_end_from_before_an_extension_never_comes_back() -> None:
    run_state_machine_as_test(EndHistories, settings=QUICK)


def _believed(seen: Observation, asked: Allocation, now: Allocation) -> Observation:
    return seen


def test_a_broken_copy_of_the_rule_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "as_asked", _believed)
    many = settings(
        QUICK, max_examples=3000, database=None, phases=[Phase.generate], derandomize=True, report_multiple_bugs=False
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(EndHistories, settings=many)


def test_what_was_decided_before_an_extension_is_not_written_after_it() -> None:
    history = EndHistories()
    history.open()
    try:
        history.a_look_begins()
        look = history.looks.pop()
        (note,) = notes_of(history.row, look.answer, (), START)
        assert isinstance(note, NoteEnd)
        schedule.extended(history.store, history.row, 20_000.0, 60, "me", START)
        schedule.note_end(history.store, "a", note.ends_at, note.extensions)
        assert history.row.ends_at == 20_000.0
        schedule.note_end(history.store, "a", 15_000.0, history.row.extensions)
        assert history.row.ends_at == 15_000.0, "what is asked afterwards counts"
    finally:
        history.teardown()
