"""The contract of every backend, kept by this one against real daemons."""

from __future__ import annotations

from openai4s_provisioner.testing.backend_contract import BackendContract


class TestSlurmBackend(BackendContract):
    pass
