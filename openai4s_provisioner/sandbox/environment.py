"""Which variables never reach a session: those that open a door, and those that name a place it does not have."""

from __future__ import annotations

import os
from collections.abc import Mapping

AGENT_VARIABLES = ("SSH_AUTH_SOCK", "GPG_AGENT_INFO", "XAUTHORITY", "KRB5CCNAME")

_DOORS = frozenset(
    {
        *AGENT_VARIABLES,
        *("JUPYTER_TOKEN", "JUPYTERHUB_API_TOKEN", "JPY_API_TOKEN", "JPY_COOKIE_SECRET", "JPY_CRYPT_KEY"),
        *("JUPYTERHUB_COOKIE_SECRET", "JUPYTERHUB_CRYPT_KEY", "JUPYTERHUB_OAUTH_ACCESS_TOKEN"),
        "CONFIGPROXY_AUTH_TOKEN",
        *("JPY_PARENT_PID", "DBUS_SESSION_BUS_ADDRESS", "SSH_AGENT_PID", "SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY"),
    }
)
_PLACES = (
    *("TMPDIR", "TMP", "TEMP", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "IPYTHONDIR"),
    *("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"),
)


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what opens a door. Pure; done before it travels anywhere."""
    return {name: value for name, value in environment.items() if name not in _DOORS}


def settled(environment: Mapping[str, str], home: str) -> dict[str, str]:
    """The environment as it is right inside: scrubbed, with that home, and with no folder that cannot be used here."""
    here = scrubbed(environment)
    for name in _PLACES:
        if name in here and not os.access(here[name], os.R_OK | os.W_OK | os.X_OK):
            del here[name]
    return {**here, "HOME": home} if home else here
