"""Kernels of other languages in a session: R over ipc."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.ioloop.manager import AsyncIOLoopKernelManager
from jupyter_client.kernelspec import KernelSpecManager

from openai4s_provisioner.jupyter import kernelspecs
from openai4s_provisioner.orchestration.config import default_config

from .conftest import SessionLab

pytestmark = pytest.mark.anyio


@pytest.fixture
def session_kernel(place: Any) -> str:
    return kernelspecs.install(KernelSpecManager(), "ir", default_config().profiles["default"]).name


async def test_r(lab: SessionLab) -> None:
    await lab.start()
    out = []
    reply = await lab.client.execute_interactive("cat(6*7); print(Sys.getpid()); cat(readLines('/proc/self/cmdline'))", output_hook=out.append)
    print(reply["content"], [m["content"] for m in out])
