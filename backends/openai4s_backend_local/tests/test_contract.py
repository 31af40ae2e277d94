"""The local backend keeps the contract of every backend."""

from __future__ import annotations

from openai4s_provisioner.testing.backend_contract import BackendContract


class TestLocalBackend(BackendContract):
    pass
