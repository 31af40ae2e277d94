"""The time limit of a real session: the person is warned of it, and can put it off where the profile allows that."""

from __future__ import annotations

import asyncio
import getpass
import logging
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from jupyter_events import EventLogger

from openai4s_provisioner.jupyter.announcer import SCHEMA_ID, SCHEMA_PATHS, WALLTIME_SCHEMA_ID
from openai4s_provisioner.orchestration.errors import Refused
from openai4s_provisioner.orchestration.reasons import Reason

from .conftest import SessionLab

pytestmark = pytest.mark.anyio


def offer(root: Path, monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    lines = [f"{name} = {value}" for name, value in limits.items()]
    path = root / "cluster.toml"
    path.write_text("\n".join(["[control]", "period_s = 0.2", "[profiles.default]", *lines]) + "\n")
    monkeypatch.setenv("OPENAI4S_CLUSTER_TOML", str(path))


@pytest.fixture
def heard(lab: SessionLab) -> list[dict[str, Any]]:
    """Every event that the lab's manager emits."""
    found: list[dict[str, Any]] = []
    logger = EventLogger(handlers=[logging.NullHandler()])

    async def listen(logger: EventLogger, schema_id: str, data: dict[str, Any]) -> None:
        found.append({"schema": schema_id, **data})

    for path in SCHEMA_PATHS:
        logger.register_event_schema(path)
    for schema_id in (SCHEMA_ID, WALLTIME_SCHEMA_ID):
        logger.add_listener(schema_id=schema_id, listener=listen)
    setattr(lab.manager, "event_logger", logger)  # noqa: B010
    return found


def of_the_end(heard: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in heard if each["schema"] == WALLTIME_SCHEMA_ID]


async def command(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "openai4s_provisioner.jupyter.cli", *words]
    return await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=60, check=False)


async def test_a_session_warns_of_its_end_and_lives_on_once_it_is_extended(
    lab: SessionLab, heard: list[dict[str, Any]], place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(place.root, monkeypatch, walltime_s=14, max_walltime_s=3600)
    await lab.start()
    warning = await lab.until(lambda: of_the_end(heard), "the end is announced")
    assert (warning[0]["state"], warning[0]["can_be_extended"]) == ("warning", True)
    assert 0 < warning[0]["seconds_left"] <= 7
    assert warning[0]["kernel_id"] == lab.manager.kernel_id
    done = await command("extend", lab.manager.kernel_id, "--by", "20m")
    assert (done.returncode, done.stderr) == (0, "")
    assert "now runs until" in done.stdout
    told = await lab.until(lambda: of_the_end(heard)[1:], "the warning is taken back")
    assert told[0]["state"] == "withdrawn"
    assert told[0]["seconds_left"] > 1100
    await lab.until(lambda: warning[0]["ends_at"] < _now(), "the first end has passed")
    assert await lab.value("3 + 4") == "7"
    refused = await command("extend", lab.manager.kernel_id, "--by", "2h")
    assert refused.returncode == 1
    assert "for at most 3600 s in all" in refused.stderr
    extended = await asyncio.wrap_future(lab.control.extend(lab.manager.kernel_id, 60, getpass.getuser()))
    assert (await lab.situation()).allocation.ends_at == extended.ends_at


async def test_a_session_that_cannot_be_extended_ends_with_that_reason(
    lab: SessionLab, heard: list[dict[str, Any]], place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(place.root, monkeypatch, walltime_s=10)
    await lab.start()
    assert not lab.control.can_extend("default")
    with pytest.raises(Refused, match="cannot be extended here"):
        await asyncio.wrap_future(lab.control.extend(lab.manager.kernel_id, 60, getpass.getuser()))
    wrong = await command("extend", lab.manager.kernel_id, "--by", "soon")
    assert wrong.returncode == 2
    assert "'soon' is no time" in wrong.stderr
    warning = await lab.until(lambda: of_the_end(heard), "the end is announced")
    assert not warning[0]["can_be_extended"]
    ended = await lab.until(
        lambda: [each for each in heard if each.get("reason") == Reason.TIME_LIMIT_EXCEEDED], "it ends for that reason"
    )
    assert Reason.TIME_LIMIT_EXCEEDED.sentence in ended[0]["sentence"]
    assert len(of_the_end(heard)) == 1


def _now() -> str:
    return datetime.now(UTC).isoformat()
