"""`cluster.toml`: what a site offers. Read strictly, refused in one sentence with file, line, key and value.

Profiles say what a person may ask for; whatever a profile holds beyond our own keys goes unread to its backend,
which refuses what it does not know. No file at all means this machine, with one profile named "default".
Nothing here is written, and nothing here knows which backends exist.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from .choice import UNBOUNDED_AT_ZERO, ResourceLimits
from .config_table import Table
from .errors import ConfigError
from .models import (
    LeasePolicy,
    ReadyCheck,
    ResourceProfile,
    SessionSpec,
    WorkerTransport,
    WorkloadSpec,
    WorkspacePolicy,
)
from .toml_lines import KeyPath, key_lines, line_of

ENVIRONMENT_KEY = "OPENAI4S_CLUSTER_TOML"
RELATIVE_PATH = Path("openai4s") / "cluster.toml"
DEFAULT_BACKEND = "local"
DEFAULT_PROFILE = "default"

_A_YEAR_S = 366 * 24 * 3600
_MOST = {"cpus": 4096, "memory_mb": 1 << 26, "gpus": 1024, "walltime_s": _A_YEAR_S}
_MAX_FILE_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class Limits:
    """Per person, not across people: that is for the place where sessions run."""

    max_sessions: int = 16
    max_batches: int = 64  # commands that wait or run without a session
    server_grace_s: int = 60  # how long a worker re-dials a server that went away before it ends


@dataclass(frozen=True)
class Policy:
    """The clocks of the control plane, in seconds. The defaults suit people; tests shorten them."""

    period_s: float = 5.0  # between two looks at everything, while something is pending or ending
    steady_period_s: float = 30.0  # the same, while all is steady and the workers talk
    call_deadline_s: float = 30.0  # one call to a backend; later it counts as "could not ask"
    settle_window_s: float = 60.0  # before an empty look-up may count as "it never landed"
    gone_debounce_s: float = 60.0  # before "found nowhere" counts as LOST
    drain_s: float = 12.0  # for the workers to end by themselves
    cancel_again_s: float = 15.0  # between two cancels while the end is not seen
    registration_timeout_s: float = 300.0  # from running to every rank registered; a profile may say otherwise
    worker_lost_s: float = 300.0  # a rank without a link for so long is lost
    rank_settle_s: float = 10.0  # for the backend to say why, once one of several ranks has ended
    workspace_settle_s: float = 60.0  # network file systems show a fresh file late
    kernel_answer_s: float = 120.0  # from the kernel's start to its first answer
    recovery_pause_s: float = (
        2.0  # before the first recovery of a lost session; four times as long before each next one
    )
    max_submits: int = 3  # how often one attempt is sent before it fails


@dataclass(frozen=True)
class SiteConfig:
    """The whole of `cluster.toml`. `source` is None when there was no file."""

    profiles: Mapping[str, ResourceProfile]
    default_profile: str = DEFAULT_PROFILE
    backends: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    policy: Policy = field(default_factory=Policy)
    source: Path | None = None
    lines: Mapping[KeyPath, int] = field(default_factory=dict, repr=False)

    def profile_for(self, name: str, spec: WorkloadSpec) -> ResourceProfile | None:
        """The profile as this workload has it; None when it is no longer offered."""
        profile = self.profiles.get(name)
        return profile.with_choice(spec.choice) if profile is not None and isinstance(spec, SessionSpec) else profile

    def place_of(self, *path: str) -> str:
        """Where a key stands, for a message: "/etc/.../cluster.toml, line 12"; "" without a file."""
        if self.source is None:
            return ""
        return f"{self.source}, line {line_of(dict(self.lines), path)}"


def load_config(
    path: str | os.PathLike[str] | None,
    environ: Mapping[str, str],
    jupyter_config_paths: Iterable[str | os.PathLike[str]],
) -> SiteConfig:
    """Find and read `cluster.toml`: an explicit path, else the environment, else along Jupyter's config path.

    A file that was named must exist; one that is merely looked for need not. Raises ConfigError.
    """
    found = find_config(path, environ, jupyter_config_paths)
    if found is None:
        return default_config()
    return parse_config(_read(found), found, home=environ.get("HOME", ""))


def find_config(
    path: str | os.PathLike[str] | None,
    environ: Mapping[str, str],
    jupyter_config_paths: Iterable[str | os.PathLike[str]],
) -> Path | None:
    if path:
        return Path(path)
    if environ.get(ENVIRONMENT_KEY):
        return Path(environ[ENVIRONMENT_KEY])
    for folder in jupyter_config_paths:
        candidate = Path(folder) / RELATIVE_PATH
        if candidate.is_file():
            return candidate
    return None


def default_config() -> SiteConfig:
    """No file: this machine, one profile."""
    profile = ResourceProfile(name=DEFAULT_PROFILE, backend=DEFAULT_BACKEND, display_name="local session")
    return SiteConfig(profiles={DEFAULT_PROFILE: profile})


def parse_config(content: str, source: Path, home: str = "") -> SiteConfig:
    """Read the text of a `cluster.toml`. Pure; raises ConfigError."""
    try:
        document = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        where = str(error).replace("at end of document", f"at line {content.count(chr(10)) + 1}, the end of the file")
        raise ConfigError(f"{source}: this is not valid TOML: {where}. Correct that line.") from None
    lines = key_lines(content)
    root = Table(document, (), source, lines, home)
    limits = _limits(root.table("limits"))
    policy = _policy(root.table("control"))
    backends = {name: dict(table.rest()) for name, table in root.tables("backends")}
    profiles = {name: _profile(name, table, policy) for name, table in root.tables("profiles")}
    if not profiles:
        (default,) = default_config().profiles.values()
        profiles = {DEFAULT_PROFILE: replace(default, registration_timeout_s=_registration_timeout_s(policy))}
    chosen = root.text("default_profile", DEFAULT_PROFILE if DEFAULT_PROFILE in profiles else next(iter(profiles)))
    if chosen not in profiles:
        raise root.wrong("default_profile", chosen, f"is not a profile. Choose one of {', '.join(sorted(profiles))}")
    root.refuse_unknown()
    return SiteConfig(profiles, chosen, backends, limits, policy, source, lines)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: this file cannot be read ({error.strerror}). Create it, or name another.") from None
    if len(raw) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path}: this file is larger than 1 MiB. Name the right file.")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: this is not UTF-8 text. Save the file as UTF-8.") from None


def _limits(table: Table) -> Limits:
    limits = Limits(
        max_sessions=table.whole("max_sessions", Limits.max_sessions, 1, 10_000),
        max_batches=table.whole("max_batches", Limits.max_batches, 1, 100_000),
        server_grace_s=table.whole("server_grace_s", Limits.server_grace_s, 1, 7 * 24 * 3600),
    )
    table.refuse_unknown()
    return limits


def _policy(table: Table) -> Policy:
    values: dict[str, Any] = {}
    for entry in fields(Policy):
        if entry.name == "max_submits":
            values[entry.name] = table.whole(entry.name, Policy.max_submits, 1, 100)
        else:
            values[entry.name] = table.number(entry.name, getattr(Policy, entry.name), 0.05, 24 * 3600)
    table.refuse_unknown()
    return Policy(**values)


def _registration_timeout_s(policy: Policy) -> int:
    return math.ceil(policy.registration_timeout_s)


def _profile(name: str, table: Table, policy: Policy) -> ResourceProfile:
    if not _NAME.fullmatch(name):
        raise table.wrong_here(
            name,
            "is not a usable profile name. Use at most 64 letters, digits, '_', '.' and '-', a letter or digit first",
        )
    leases = _leases(table.table("leases"))
    limits = table.table("limits")
    walltime_s = table.whole("walltime_s", 0, 0, _MOST["walltime_s"])
    profile = ResourceProfile(
        name=name,
        backend=table.text("backend", DEFAULT_BACKEND),
        display_name=table.text("display_name", ""),
        cpus=table.whole("cpus", 1, 1, _MOST["cpus"]),
        memory_mb=table.whole("memory_mb", 0, 0, _MOST["memory_mb"]),
        gpus=table.whole("gpus", 0, 0, _MOST["gpus"]),
        walltime_s=walltime_s,
        max_walltime_s=_max_walltime_s(table, walltime_s),
        nodes=table.whole("nodes", 1, 1, 4096),
        leases=leases,
        workspace=table.choice("workspace", WorkspacePolicy.ROOT),
        share=table.paths("share"),
        share_read_only=table.paths("share_read_only"),
        ready_check=table.choice("ready_check", ReadyCheck.EXECUTE),
        registration_timeout_s=table.whole("registration_timeout_s", _registration_timeout_s(policy), 1, 24 * 3600),
        spool_mb=table.whole("spool_mb", 2048, 0, 1 << 20),
        transport=table.choice("transport", WorkerTransport.AUTO),
        backend_options=table.rest(),
    )
    return replace(profile, limits=_resource_limits(limits, profile))


def _resource_limits(table: Table, profile: ResourceProfile) -> ResourceLimits:
    """The most that a person may choose, of which the profile's own is always a part."""
    found: dict[str, int] = {}
    for name, most in _MOST.items():
        own: int = getattr(profile, name)
        value = table.whole(name, own, 0, most)
        bounded = value != 0 or name not in UNBOUNDED_AT_ZERO
        if bounded and (value < own or (own == 0 and value != own and name in UNBOUNDED_AT_ZERO)):
            why = f"is less than the profile's own {name} = {own}"
            if own == 0 and name in UNBOUNDED_AT_ZERO:
                why = f"limits what the profile does not state. Set {name} of the profile as well"
            raise table.wrong(name, value, why)
        if value != own:
            found[name] = value
    table.refuse_unknown()
    return ResourceLimits(**found)


def _max_walltime_s(table: Table, walltime_s: int) -> int:
    most = table.whole("max_walltime_s", 0, 0, _A_YEAR_S)
    if 0 < most < walltime_s:
        raise table.wrong("max_walltime_s", most, f"is less than walltime_s = {walltime_s}. Raise it, or remove it")
    return most


def _leases(table: Table) -> LeasePolicy:
    default = LeasePolicy()
    leases = LeasePolicy(
        idle_ttl_s=table.whole("idle_ttl_s", default.idle_ttl_s, 1, _A_YEAR_S),
        max_lifetime_s=table.whole("max_lifetime_s", default.max_lifetime_s, 1, _A_YEAR_S),
        warn_s=table.whole("warn_s", default.warn_s, 0, 24 * 3600),
        busy_counts=table.flag("busy_counts", default.busy_counts),
    )
    table.refuse_unknown()
    return leases
