"""The server extension: our REST interface and events, and the control plane's start with the server.

It makes no file, socket, port or thread while there never was a session. What is wrong with the settings is said in
one line of the log, and stops no server.
"""

from __future__ import annotations

from typing import Any

from jupyter_server.extension.application import ExtensionApp

from ..orchestration.errors import ProvisionerError
from . import announcer, pending_kernels, routes
from .control_door import ControlDoor
from .server_log import ServerLog
from .settings import OpenAI4S


class SessionsExtension(ExtensionApp):
    """Loaded by every Jupyter server of an environment that this package is installed in."""

    name = "openai4s_provisioner"
    extension_url = "/openai4s"

    door: ControlDoor
    server_log: ServerLog

    def initialize_settings(self) -> None:
        """Called while the server is made, before any kernel."""
        server = self.serverapp
        assert server is not None
        assert server.event_logger is not None
        self.server_log = ServerLog(server.log)
        self.server_log.join()
        settings = OpenAI4S(parent=server)
        self.door = ControlDoor(settings.frozen())
        if settings.pending_kernels:
            pending_kernels.put_on(server.kernel_manager)
        announcer.register(server.event_logger)

    def initialize_handlers(self) -> None:
        self.handlers.extend((pattern, handler, {"door": self.door}) for pattern, handler in routes.ROUTES)

    async def stop_extension(self) -> None:
        """Called at the server's end, before it shuts its kernels down: no start may outlive it."""
        manager = self.serverapp.kernel_manager if self.serverapp else None
        if isinstance(manager, pending_kernels.PendingSessions):
            await manager.give_up_all()
        self.server_log.leave()

    async def _start_jupyter_server_extension(self, serverapp: Any) -> None:
        """Called once the server's loop runs: drive what is open, and say what is wrong."""
        trouble = await self.door.trouble()
        try:
            if trouble is None and await self.door.resume():
                self.log.info(
                    "Sessions or commands are open in %s; they are looked after.", self.door.settings.state_dir
                )
        except ProvisionerError as error:
            trouble = str(error)
        if trouble is not None:
            self.log.error("No session can be started here: %s", trouble)
