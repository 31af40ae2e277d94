"""The site's and the person's settings as traits, read once when the first session starts.

Configure them as ``c.OpenAI4S.<name>`` in any Jupyter configuration file. What belongs to a profile is not here:
that is cluster.toml.
"""

from __future__ import annotations

import os
from pathlib import Path

from jupyter_core.paths import jupyter_config_dir, jupyter_config_path, jupyter_data_dir, jupyter_runtime_dir
from traitlets import Bool, List, Unicode
from traitlets.config import Application, Config, Configurable

from ..app import AppSettings

_FILES = ("jupyter_config", "jupyter_server_config")  # the later one counts more


class OpenAI4S(Configurable):
    """Where sessions keep their state, and where the site's offer is written down."""

    state_dir = Unicode(
        help="Folder of the state database and secrets (mode 0700; a local disk is best). "
        "Default: $XDG_STATE_HOME/openai4s, else ~/.local/state/openai4s.",
    ).tag(config=True)
    exchange_dir = Unicode(
        help="Folder through which attempts reach the machines they run on; must be visible there. "
        "Default: the folder 'exchange' in state_dir.",
    ).tag(config=True)
    cluster_toml = Unicode(
        help="Path of cluster.toml. Default: $OPENAI4S_CLUSTER_TOML, else openai4s/cluster.toml along Jupyter's "
        "configuration path, else one default profile on this machine.",
    ).tag(config=True)

    worker_listen = Unicode(
        help='Where workers of other machines dial in: "9000" (every interface), "host:9000", "[v6]:9000", or a range '
        'of which the first free port is taken, "9000-9099"; several servers on one host need a range. Default: '
        "$OPENAI4S_WORKER_LISTEN, else no port is opened.",
    ).tag(config=True)
    worker_advertise = List(
        Unicode(),
        help='What workers are told to dial before this machine\'s own addresses: "host", "host:9000", "[v6]:9000". '
        "Needed where nodes see this machine under another address. Default: $OPENAI4S_WORKER_ADVERTISE, separated "
        "by commas, else nothing.",
    ).tag(config=True)

    pending_kernels = Bool(
        True,
        help="Whether a Jupyter server lists a session's kernel while it still waits, so that the start answers at "
        "once, cells queue, a reload finds it again, and it can be shut down. Off: the start blocks for as long as the "
        "queue does. Other kernels are not affected.",
    ).tag(config=True)

    def frozen(self) -> AppSettings:
        """The settings as one value, with every default filled in. Creates nothing."""
        state_dir = (
            Path(self.state_dir).expanduser() if self.state_dir else _xdg("XDG_STATE_HOME", ".local/state") / "openai4s"
        )
        exchange_dir = Path(self.exchange_dir).expanduser() if self.exchange_dir else state_dir / "exchange"
        return AppSettings(
            state_dir=state_dir.absolute(),
            exchange_dir=exchange_dir.absolute(),
            cluster_toml=Path(self.cluster_toml).expanduser() if self.cluster_toml else None,
            config_path=tuple(Path(p) for p in jupyter_config_path()),
            workspaces_dir=_xdg("XDG_DATA_HOME", ".local/share") / "openai4s" / "workspaces",
            worker_listen=self.worker_listen or os.environ.get("OPENAI4S_WORKER_LISTEN", ""),
            worker_advertise=tuple(self.worker_advertise) or _listed(os.environ.get("OPENAI4S_WORKER_ADVERTISE", "")),
            jupyter_folders=(jupyter_config_dir(), jupyter_data_dir(), jupyter_runtime_dir()),
        )


def configured() -> Config:
    """What Jupyter's configuration files, the server's too, say of us: for programs that do not read them themselves.

    A notebook run by a script must find the state, the profiles and the port that the same person's server has.
    """
    reader = Application()
    for name in _FILES:
        reader.load_config_file(name, path=jupyter_config_path())
    ours: Config = reader.config.get("OpenAI4S", Config())
    return Config({"OpenAI4S": ours})


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",")) if text.strip() else ()


def _xdg(variable: str, default: str) -> Path:
    """A base folder of the XDG specification, which ignores relative values."""
    value = Path(os.environ.get(variable, ""))
    return value if value.is_absolute() else Path.home() / default
