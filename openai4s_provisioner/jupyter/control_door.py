"""A server's way to the control plane: made when it is needed, and not before.

Where no state exists, asking makes none: no file, no thread. A wrong setting or `cluster.toml` is a sentence, which is
no reason for a server not to run.
"""

from __future__ import annotations

import asyncio

from ..app import ControlPlane
from ..app_values import AppSettings
from ..orchestration.config import SiteConfig
from ..orchestration.errors import ConfigError
from ..orchestration.store.sqlite import FILE_NAME
from ..parts import AdmissionParts, load_site_config
from ..starts import Start


class ControlDoor:
    def __init__(self, settings: AppSettings) -> None:
        self.settings = settings

    @property
    def has_state(self) -> bool:
        """Whether there ever was a session."""
        return (self.settings.state_dir / FILE_NAME).exists()

    def control(self) -> ControlPlane:
        """The same that this server's kernels use. Raises ConfigError."""
        return ControlPlane.shared(self.settings)

    def starts(self) -> tuple[Start, ...]:
        """Those of this server that are no sessions yet, or were refused; the newest first."""
        control = ControlPlane.existing(self.settings)
        return () if control is None else control.starts.all()

    def config(self) -> SiteConfig:
        """Raises ConfigError."""
        return load_site_config(self.settings)

    def trouble(self) -> str | None:
        """Why no session could be started here, in one sentence for whoever set it up; None when nothing is wrong."""
        try:
            parts = AdmissionParts(self.settings)
            for profile in parts.config.profiles.values():
                backend = parts.backends.get(profile.backend)
                if backend is not None:
                    backend.check_profile(profile)
        except ConfigError as error:
            return str(error)
        return None

    @property
    def is_driving(self) -> bool:
        control = ControlPlane.existing(self.settings)
        return control is not None and control.is_driving

    async def resume(self) -> bool:
        """Drive what is open in the state, if anything is. Raises ConfigError, StateError."""
        if not self.has_state:
            return False
        return await asyncio.wrap_future(self.control().drive_what_is_open())
