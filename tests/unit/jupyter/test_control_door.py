"""What a server finds out about its settings before anybody starts a session."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from openai4s_provisioner.jupyter.control_door import ControlDoor
from openai4s_provisioner.jupyter.settings import OpenAI4S
from openai4s_provisioner.orchestration.models import ResourceProfile


class BackendThatIsLookedAt:
    name = "local"

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.checked_in: list[threading.Thread] = []
        self.closed = 0

    def check_profile(self, profile: ResourceProfile) -> None:
        self.checked_in.append(threading.current_thread())
        if self.error is not None:
            raise self.error

    async def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("error", [None, RuntimeError("no such library")])
def test_settings_are_looked_at_beside_the_loop_once_for_all_who_ask_and_nothing_stays_open(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    backend = BackendThatIsLookedAt(error)
    monkeypatch.setattr("openai4s_provisioner.parts.load_backends", lambda *_: {"local": backend})

    async def scenario() -> list[Any]:
        door = ControlDoor(OpenAI4S().frozen())
        return await asyncio.gather(*(door.trouble() for _ in range(5)))

    told = set(asyncio.run(scenario()))
    assert len(told) == 1
    sentence = told.pop()
    if error is None:
        assert sentence is None
    else:
        assert sentence == (
            "The backends of sessions could not be looked at (RuntimeError: no such library). Repair what is installed."
        )
    assert len(backend.checked_in) == backend.closed == 1
    assert threading.main_thread() not in backend.checked_in
