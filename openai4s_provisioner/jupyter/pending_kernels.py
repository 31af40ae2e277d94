"""Sessions that still wait are kernels already: a start answers at once, and can be given up, also in a server's queue.

A subclass is put on the server's live kernel manager, whichever class a portal chose. It changes what happens to
kernels of ours alone, for as long as they wait; every other kernel starts, blocks and ends as it did. Kernel managers
have this only for all of their kernels (`use_pending_kernels`), and then a queued one can neither be shut down nor
interrupted, and hangs the server's exit and its culler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jupyter_client.kernelspec import NoSuchKernel
from jupyter_client.manager import KernelManager
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_server.gateway.managers import GatewayMappingKernelManager
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from tornado import web

from .kernelspecs import PROVISIONER
from .provisioner import SessionProvisioner

_GIVE_UP_WAIT_S = 5.0
_LOOK_S = 0.01


@dataclass
class _Call:
    """One start of a kernel of ours. What it leaves running inherits its context, hence the switch."""

    is_open: bool = True


@dataclass
class _Start:
    """A kernel of ours: how it was asked for, and the start that is on its way."""

    kernel: KernelManager
    asked: Mapping[str, Any]
    task: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def is_queued(self) -> bool:
        return not self.task.done()

    @property
    def error(self) -> BaseException | None:
        """Why it failed, if it did."""
        ready = self.kernel.ready
        return ready.exception() if not self.is_queued and ready.done() and not ready.cancelled() else None


_call: ContextVar[_Call | None] = ContextVar("openai4s_start", default=None)

if TYPE_CHECKING:
    _Base = AsyncMappingKernelManager
else:
    _Base = object


def put_on(manager: object) -> None:
    """Make `manager` one whose sessions may wait. Idempotent; it keeps its class, its kernels and its settings.

    Not for one whose kernels are started elsewhere, or that blocks a whole server while it starts one.
    """
    cls = type(manager)
    is_fit = isinstance(manager, AsyncMappingKernelManager) and not isinstance(manager, GatewayMappingKernelManager)
    if is_fit and not issubclass(cls, PendingSessions):
        manager.__class__ = type(cls.__name__, (PendingSessions, cls), {"__module__": cls.__module__})
        manager._sessions = {}  # type: ignore[attr-defined]


class PendingSessions(_Base):
    """What is put before a kernel manager's own class."""

    _sessions: dict[str, _Start]

    @property
    def use_pending_kernels(self) -> bool:
        """Read by the base classes all along a start, and again by the handlers after it."""
        call = _call.get()
        return (call is not None and call.is_open) or bool(super().use_pending_kernels)

    @use_pending_kernels.setter
    def use_pending_kernels(self, value: bool) -> None:
        AsyncMappingKernelManager.use_pending_kernels.set(self, value)

    # -- starting --------------------------------------------------------------------------------------------------

    async def start_kernel(self, **kwargs: Any) -> str:  # type: ignore[override]
        if self._has(kwargs.get("kernel_id")) or not self._is_ours(kwargs.get("kernel_name")):
            return await super().start_kernel(**kwargs)
        call = _Call()
        token = _call.set(call)
        try:
            kernel_id: str = await super().start_kernel(**kwargs)
        finally:
            call.is_open = False
            _call.reset(token)
        self._follow(kernel_id, kwargs)
        return kernel_id

    def _has(self, kernel_id: str | None) -> bool:
        return kernel_id is not None and kernel_id in self

    def _is_ours(self, kernel_name: str | None) -> bool:
        specs = self.kernel_spec_manager
        if specs is None:
            return False
        try:
            spec = specs.get_kernel_spec(kernel_name or self.default_kernel_name)
        except (NoSuchKernel, ValueError, OSError):
            return False  # whoever starts it says what is wrong with it
        stanza = spec.metadata.get("kernel_provisioner")
        if isinstance(stanza, dict):
            return stanza.get("provisioner_name") == PROVISIONER
        return bool(KernelProvisionerFactory.instance(parent=self).default_provisioner_name == PROVISIONER)

    def _follow(self, kernel_id: str, asked: Mapping[str, Any]) -> None:
        start = self._sessions[kernel_id] = _Start(self._kernels[kernel_id], asked)
        task = self._pending_kernels.get(kernel_id)
        if task is None:  # a class of the portal's own waited for it
            start.task.set_result(None)
            return
        start.task = task
        task.add_done_callback(lambda _: self._started(start))

    def _started(self, start: _Start) -> None:
        """Neither stays "starting" for ever: one that failed, with its reason, and one that has answered us alone."""
        kernel: Any = start.kernel
        if (error := start.error) is not None:
            kernel.execution_state, kernel.reason = "dead", str(error)
        elif kernel.execution_state == "starting":
            kernel.execution_state = "idle"

    # -- while it waits --------------------------------------------------------------------------------------------

    def interrupt_kernel(self, kernel_id: str) -> Any:
        if self._waits(kernel_id):
            raise web.HTTPError(
                409, "The session still waits, so nothing runs that could be interrupted. Shut it down to give it up."
            )
        return super().interrupt_kernel(kernel_id)

    async def restart_kernel(self, kernel_id: str, now: bool = False) -> Any:  # type: ignore[override]
        """One that waits keeps its place in the queue; one whose start failed is started anew."""
        start = self._sessions.get(kernel_id)
        if start is not None and start.is_queued:
            self.log.info("Kernel %s still waits; its restart has nothing to do.", kernel_id)
            return None
        if start is not None and start.error is not None:
            await self.shutdown_kernel(kernel_id)  # nothing runs: it only leaves the map, and the server's counts
            return await self.start_kernel(**{**start.asked, "kernel_id": kernel_id})
        return await super().restart_kernel(kernel_id, now=now)  # type: ignore[no-untyped-call]

    async def cull_kernel_if_idle(self, kernel_id: str) -> None:
        if not self._waits(kernel_id):
            await super().cull_kernel_if_idle(kernel_id)  # type: ignore[no-untyped-call]

    def _waits(self, kernel_id: str) -> bool:
        start = self._sessions.get(kernel_id)
        return start is not None and start.is_queued

    # -- giving up -------------------------------------------------------------------------------------------------

    async def shutdown_kernel(self, kernel_id: str, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        await self._give_up(kernel_id)
        await super().shutdown_kernel(kernel_id, *args, **kwargs)  # type: ignore[no-untyped-call]

    async def _async_shutdown_kernel(self, kernel_id: str, *args: Any, **kwargs: Any) -> None:
        await self._give_up(kernel_id)
        await super()._async_shutdown_kernel(kernel_id, *args, **kwargs)  # type: ignore[no-untyped-call]

    async def shutdown_all(self, now: bool = False) -> None:  # type: ignore[override]
        await self.give_up_all()
        await super().shutdown_all(now=now)

    async def give_up_all(self) -> None:
        """Give up every start that is on its way."""
        await asyncio.gather(*map(self._give_up, list(self._sessions)))

    def remove_kernel(self, kernel_id: str) -> KernelManager:
        if (start := self._sessions.pop(kernel_id, None)) is not None:
            self._kernel_connections.pop(kernel_id, None)
            if isinstance(start.kernel.provisioner, SessionProvisioner):
                start.kernel.provisioner.forget_start()
        return super().remove_kernel(kernel_id)

    async def _give_up(self, kernel_id: str) -> None:
        """End the start first: the base classes wait for it before they shut anything down."""
        start = self._sessions.get(kernel_id)
        if start is None or not start.is_queued:
            return
        while start.kernel.provisioner is None and start.is_queued:  # its first step is about to make it # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        if isinstance(start.kernel.provisioner, SessionProvisioner):
            start.kernel.provisioner.give_up()
        await asyncio.wait({start.task}, timeout=_GIVE_UP_WAIT_S)
