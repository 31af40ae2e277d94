"""``jupyter openai4s settings``: what counts on this machine, and whether each profile could be served now.

For whoever sets a site up: where ``cluster.toml`` and state were found, and of each profile what admission would refuse
before it asks for an allocation. It starts nothing, writes nothing, and proves no isolation: the first session does.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
from typing import Any

from ..app import AppSettings
from ..orchestration.errors import CouldNotAsk, Refused
from ..orchestration.models import ResourceProfile
from ..orchestration.ports import AllocationBackend
from ..parts import AdmissionParts
from .cli_settings import add_settings, run_here, settings_of

_ASK_S = 30.0


def add_commands(commands: Any) -> None:
    """Add the command to a parser's commands."""
    settings = commands.add_parser("settings", help="what is configured, and what is wrong with it")
    add_settings(settings)
    settings.set_defaults(run=_settings)


def _settings(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)

    async def work() -> int:
        _line("state_dir", settings.state_dir)
        _line("exchange_dir", settings.exchange_dir)
        _line("worker_listen", settings.worker_listen or "no port is opened")
        _line("worker_advertise", ", ".join(settings.worker_advertise) or "this machine's own addresses")
        admitting = AdmissionParts(settings)
        try:
            _line("cluster.toml", admitting.config.source or f"none found: one profile. {_looked(settings)}")
            silent = {name: await _silence(each) for name, each in admitting.backends.items()}
            troubles = [
                _told(admitting, profile, silent.get(profile.backend, ""))
                for _, profile in sorted(admitting.config.profiles.items())
            ]
            return 1 if any(troubles) else 0
        finally:
            await admitting.stop()

    return run_here(work())


def _line(name: str, value: object) -> None:
    print(f"{name + ':':18} {value}")


def _looked(settings: AppSettings) -> str:
    return f"Looked for openai4s/cluster.toml in {', '.join(map(str, settings.config_path))}."


def _told(admitting: AdmissionParts, profile: ResourceProfile, silence: str) -> bool:
    """Whether something keeps sessions of it from being asked for; the first such thing is said."""
    trouble = silence
    try:
        admitting.admission.check_profile(profile.name)
    except Refused as error:
        trouble = str(error)
    _line(f"profile {profile.name}", f"{profile.backend}: {trouble or 'can be asked for'}")
    return bool(trouble)


async def _silence(backend: AllocationBackend) -> str:
    """Why it cannot be asked now; "" when it can. The question is one whose answer is no."""
    try:
        async with asyncio.timeout(_ASK_S):
            await backend.find_by_token(secrets.token_hex(24))
    except CouldNotAsk as error:
        return f"cannot be asked now: {error}."
    except TimeoutError:
        return f"did not answer within {_ASK_S:g} s."
    return ""
