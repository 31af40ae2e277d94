"""A server's way to the control plane: made when it is needed, and not before.

Where no state exists, asking makes none: no file, no thread. A wrong setting or `cluster.toml` is a sentence, which is
no reason for a server not to run.
"""

from __future__ import annotations

import asyncio

from ..app import ControlPlane
from ..app_values import AppSettings
from ..orchestration.admission import check_profile
from ..orchestration.config import SiteConfig
from ..orchestration.errors import ConfigError
from ..orchestration.store.sqlite import FILE_NAME
from ..parts import AdmissionParts, load_site_config
from ..starts import Start


class ControlDoor:
    def __init__(self, settings: AppSettings) -> None:
        self.settings = settings
        self._looking: asyncio.Task[str | None] | None = None

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

    async def trouble(self) -> str | None:
        """Why no session could be started here, in one sentence for whoever set it up; None when nothing is wrong.

        Looked at beside Jupyter's loop, and once for all who ask at the same time.
        """
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(asyncio.to_thread(_trouble, self.settings))
        return await asyncio.shield(self._looking)

    @property
    def is_driving(self) -> bool:
        control = ControlPlane.existing(self.settings)
        return control is not None and control.is_driving

    async def resume(self) -> bool:
        """Drive what is open in the state, if anything is. Raises ConfigError, StateError."""
        if not self.has_state:
            return False
        return await asyncio.wrap_future(self.control().drive_what_is_open())


def _trouble(settings: AppSettings) -> str | None:
    try:
        parts = AdmissionParts(settings)
        try:
            for profile in parts.config.profiles.values():
                backend = parts.backends.get(profile.backend)
                if backend is not None:
                    check_profile(parts.config, backend, profile)
        finally:
            asyncio.run(parts.stop())
    except ConfigError as error:
        return str(error)
    except Exception as error:  # a backend may be somebody else's
        told = f"{type(error).__name__}: {error}"
        return f"The backends of sessions could not be looked at ({told}). Repair what is installed."
    return None
