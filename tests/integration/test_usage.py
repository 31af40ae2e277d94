"""What a real session uses, from its worker to the control plane's door."""

from __future__ import annotations

import os
from typing import Any

import pytest

from .conftest import SessionLab

pytestmark = pytest.mark.anyio


async def test_memory_processors_and_accelerators_of_a_session_are_known(
    lab: SessionLab, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = place.root / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho '41, 2048'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    (place.root / "cluster.toml").write_text("[profiles.default]\ngpus = 1\nmemory_mb = 4000\n")
    monkeypatch.setenv("OPENAI4S_CLUSTER_TOML", str(place.root / "cluster.toml"))
    await lab.start()
    workload_id = (await lab.situation()).workload.workload_id
    await lab.run("x = bytearray(300 << 20)\nimport threading; t = threading.Event()")
    assert lab.client is not None
    lab.client.execute("while not t.is_set(): pass")

    def busy() -> Any:
        found = lab.control.usage(workload_id)
        return found is not None and found.memory_mb > 300 and found.cpu_percent > 5 and found.gpus and found

    usage = await lab.until(busy, "the use of the session is known")
    assert usage.memory_limit_mb == 4000
    assert (usage.gpus[0].percent, usage.gpus[0].memory_mb) == (41, 2048)
    assert lab.control.usage("another") is None
    await lab.manager.interrupt_kernel()
