"""The memory and the disk that all spools of one process share, so that many slow readers cost no more than one.

Memory is divided evenly among the spools that exist; the disk is first come, first served. Knows nothing of what is
stored, and never drops anything: a spool that gets no more room decides for itself.
"""

from __future__ import annotations

import os
from typing import Protocol

from .slots import SlotFile

BLOCK = 64 * 1024
MEMORY_BYTES = 32 * 1024 * 1024
DISK_BYTES = 2 * 1024 * 1024 * 1024


class Tenant(Protocol):
    def spill_to_share(self) -> None:
        """The share has become smaller."""


class SpoolRoom:
    def __init__(
        self,
        memory_bytes: int = MEMORY_BYTES,
        disk_bytes: int = DISK_BYTES,
        folder: str | os.PathLike[str] | None = None,
        block: int = BLOCK,
    ) -> None:
        """`folder` should be on a local disk; None is the system's temporary folder."""
        self.block = block
        self.slots = SlotFile(folder, block, disk_bytes // block)
        self._memory_bytes = memory_bytes
        self._tenants: list[Tenant] = []

    @property
    def share(self) -> int:
        """Bytes of memory for each spool."""
        return self._memory_bytes // max(1, len(self._tenants))

    def join(self, tenant: Tenant) -> None:
        self._tenants.append(tenant)
        for other in self._tenants[:-1]:
            other.spill_to_share()

    def leave(self, tenant: Tenant) -> None:
        """The file goes with the last one."""
        if tenant in self._tenants:
            self._tenants.remove(tenant)
            if not self._tenants:
                self.slots.close()
