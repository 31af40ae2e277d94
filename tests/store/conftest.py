"""A store with one session in it, and the values it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.models import LeasePolicy, SessionSpec
from openai4s_provisioner.orchestration.store import NewSession, Store, drivers

DAEMON = "d"


def new_session(number: int = 0, **change: object) -> NewSession:
    session = NewSession(
        workload_id=f"w{number}",
        allocation_id=f"a{number}",
        token=f"{number:032d}",
        owner="me",
        profile="p",
        backend="fake",
        nodes=2,
        spec=SessionSpec("/work", "/work", "python3", "a.ipynb"),
        kernel_id=f"k{number}",
        launch_id=f"l{number}",
        leases=LeasePolicy(),
        max_sessions=10,
    )
    return replace(session, **change)  # type: ignore[arg-type]


def open_store(folder: Path) -> Store:
    store = Store(folder)
    if store.db.row("driver_of", workload_id="w0") is None:
        drivers.register(store, DAEMON, "host", "boot", 1, 0.0)
        store.open_session(new_session(), DAEMON, 1.0)
    return store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path / "state")
    yield opened
    opened.close()
