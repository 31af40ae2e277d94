"""Profiles of several ranks for tests: a backend that is found by its entry point, like a stranger's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Offer = Callable[..., None]


@pytest.fixture
def offer(place: Any, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """`offer(nodes, **faults)`: the default profile holds so many ranks, in a backend found like a stranger's."""
    found = place.root / "site" / "ranks-1.dist-info"
    found.mkdir(parents=True)
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: ranks\nVersion: 1\n")
    entry = "[openai4s_provisioner.backends]\nranks = openai4s_provisioner.testing.rank_backend:create_backend\n"
    (found / "entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(str(found.parent))
    monkeypatch.setenv("PYTHONPATH", str(found.parent))

    def write(nodes: int, control: str = "", **faults: object) -> None:
        options = [
            f"{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}"
            for name, value in faults.items()
        ]
        path = place.root / "cluster.toml"
        path.write_text(
            "\n".join(
                [
                    "[control]\nperiod_s = 0.2\nsteady_period_s = 0.5\nrecovery_pause_s = 0.1\nrank_settle_s = 0.5",
                    control,
                    "[backends.ranks]",
                    *options,
                    f"[profiles.default]\nbackend = 'ranks'\nnodes = {nodes}",
                ]
            )
        )
        monkeypatch.setenv("OPENAI4S_CLUSTER_TOML", str(path))

    return write


def state_of(place: Any) -> Path:
    return Path(place.root) / "home/.local/state/openai4s"
