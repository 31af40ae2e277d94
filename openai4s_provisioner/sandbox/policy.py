"""What a session may see, turned into a SandboxSpec: the one place that says which folders are always hidden.

It looks at the disk of the machine it runs on to refuse, by name, a configured path that would show something masked.
It names no backend: what only one backend can name arrives as `masked`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from .environment import AGENT_VARIABLES
from .errors import MaskUncovered as MaskUncovered
from .home import CREDENTIALS, IPYTHON_FILES, OVERLAID, STARTUP_FILES
from .host import Host, is_within
from .layout import SYSTEM_FOLDERS, plan
from .spec import NETWORK_SHARED, SandboxSpec

# A workspace may lie inside some of these, but must not be one, nor contain one.
_NEVER_A_WORKSPACE = (*SYSTEM_FOLDERS, "/boot", "/dev", "/proc", "/run", "/tmp", "/var", "/var/tmp")  # noqa: S108
_NEVER_SHARED = ("/dev", "/proc", "/run", "/tmp", "/var/tmp")  # noqa: S108
_NEVER_IN_A_WORKSPACE = ("/boot", "/dev", "/etc", "/proc", "/sys", "/run/openai4s")

_SYSTEM_SECRETS = ("/etc/shadow", "/etc/gshadow", "/etc/krb5.keytab")


def session_spec(
    *,
    workspace: str,
    home: str,
    home_source: str,
    state_paths: Sequence[str],
    jupyter_paths: Sequence[str],
    prefixes: Sequence[str],
    share: Sequence[str] = (),
    share_read_only: Sequence[str] = (),
    devices: Sequence[str] = (),
    resources: Sequence[str] = (),
    masked: Sequence[str] = (),
    network: str = NETWORK_SHARED,
    environment: Mapping[str, str] | None = None,
    host: Host | None = None,
) -> SandboxSpec:
    """The sandbox of a session. Raises MaskUncovered, which names the path at fault.

    `home`: the person's real home, which is where $HOME is inside as well; `home_source`: the persistent home of the
    person's sessions (`home.prepare_session_home` makes it). `resources`: read-only folders that may lie inside a mask.
    `masked`: what else is to be hidden, as the backend names it. `environment`: where agents' sockets are looked up.
    """
    machine = host or Host()
    environment = os.environ if environment is None else environment
    home_is_visible = sees_real_home(workspace, home, machine)
    _refuse_workspace(workspace, machine)
    _refuse_shares([*share, *share_read_only, *prefixes], machine)
    if home_is_visible:
        _refuse_links(workspace, home, jupyter_paths, machine)
    spec = SandboxSpec(
        workspace=workspace,
        home=home,
        home_source="" if home_is_visible else home_source,
        read_only=_distinct([*prefixes, *share_read_only]),
        read_write=_distinct(share),
        resources=_distinct(resources),
        masked=_masks(home, [*state_paths, *jupyter_paths, *masked], environment),
        protected=_protected(home, home_source, home_is_visible),
        overlays=tuple((f"{home_source}/{name}", f"{home}/{name}") for name in OVERLAID) if home_is_visible else (),
        devices=_distinct(devices),
        network=network,
    )
    plan(spec, machine)
    return spec


def sees_real_home(workspace: str, home: str, host: Host | None = None) -> bool:
    """Whether a session with this workspace sees the person's own home; `home.prepare_real_home` comes first then."""
    machine = host or Host()
    return is_within(machine.real(home), machine.real(workspace))


def _distinct(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(os.path.normpath(path) for path in paths if path))


def _masks(home: str, given: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    agents = [environment.get(name, "").partition(":")[0] for name in AGENT_VARIABLES]
    runtime = [f"/run/user/{os.getuid()}", "/run/docker.sock", "/run/podman", "/run/containerd", "/run/dbus"]
    credentials = [os.path.join(home, name) for name in CREDENTIALS]
    agents = [agent for agent in agents if os.path.isabs(agent)]
    return _distinct([*given, *credentials, *runtime, *agents, *_SYSTEM_SECRETS])


def _protected(home: str, home_source: str, home_is_visible: bool) -> tuple[str, ...]:
    ours = [os.path.join(home_source, name) for name in (*STARTUP_FILES, *IPYTHON_FILES) if home_source]
    real = [os.path.join(home, name) for name in STARTUP_FILES if home_is_visible]
    return _distinct([*real, *ours])


def _refuse_workspace(workspace: str, host: Host) -> None:
    for path in (workspace, host.real(workspace)):
        contains = any(is_within(folder, path) for folder in _NEVER_A_WORKSPACE)
        if contains or any(is_within(path, folder) for folder in _NEVER_IN_A_WORKSPACE):
            raise MaskUncovered(
                workspace,
                f"the folder {workspace} cannot be a session's workspace because it belongs to the system: "
                "choose a folder of your own",
            )


def _refuse_shares(shares: Iterable[str], host: Host) -> None:
    for share in shares:
        if any(is_within(folder, path) for folder in _NEVER_SHARED for path in (share, host.real(share))):
            raise MaskUncovered(
                share,
                f"the folder {share} cannot be shown to a session because other sessions keep private files below it: "
                "choose a folder inside it",
            )


def _refuse_links(workspace: str, home: str, jupyter_paths: Sequence[str], host: Host) -> None:
    """A symlink cannot be made read-only: a session could replace it, and with it what runs at the next login."""
    real_home = host.real(home)
    names = [*STARTUP_FILES, ".ssh", ".local", ".config"]
    inside = [path for path in jupyter_paths if is_within(path, home)]
    for path in [*(f"{real_home}/{name}" for name in names), *(host.real(home) + path[len(home) :] for path in inside)]:
        link = host.first_link(path)
        overlaid = any(is_within(path, f"{real_home}/{name}/") for name in OVERLAID)
        if link and not overlaid:
            raise MaskUncovered(
                link,
                f"the workspace {workspace} contains your home folder, and in it {link} is a symlink, which cannot be "
                "kept from being replaced by a session: put the real file there, or choose a workspace inside your "
                "home",
            )
