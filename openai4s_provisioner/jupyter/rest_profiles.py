"""REST: what this site offers, without anything that only administrators need. Described in rest-api.yml."""

from __future__ import annotations

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized
from tornado import web

from ..orchestration.config import SiteConfig
from ..orchestration.errors import ConfigError
from .kernelspecs import profile_of
from .rest_base import SessionsHandler
from .session_json import profile_json


class ProfilesList(SessionsHandler):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        offline = await self.door.trouble()
        try:
            config = self.door.config()
        except ConfigError as error:
            self.answer({"profiles": [], "offline": str(error)})
            return
        names = await self._kernelspecs(config)
        profiles = [
            profile_json(profile, name == config.default_profile, names.get(name, []))
            for name, profile in config.profiles.items()
        ]
        self.answer({"profiles": profiles, "offline": offline})

    async def _kernelspecs(self, config: SiteConfig) -> dict[str, list[str]]:
        """The names of the kernelspecs that start sessions, by profile."""
        specs = await ensure_async(self.kernel_spec_manager.get_all_specs())
        found: dict[str, list[str]] = {}
        for name, each in sorted(specs.items()):
            profile = profile_of(each.get("spec", {}).get("metadata", {}))
            if profile is not None:
                found.setdefault(profile or config.default_profile, []).append(name)
        return found
