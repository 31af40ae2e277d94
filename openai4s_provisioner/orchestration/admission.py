"""The one way in (INV-10): every request passes the same checks in the same order, before anything is written.

A refusal carries a Reason and one sentence that says what to do. Admission creates nothing; it only answers.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..sandbox.errors import SandboxError
from .commands import check_command
from .config import SiteConfig
from .errors import ConfigError, CouldNotAsk, Refused
from .models import (
    BatchSpec,
    KernelLaunch,
    KernelTransport,
    ResourceProfile,
    SessionSpec,
    WorkloadSpec,
    WorkspacePolicy,
)
from .own_thread import looked_at
from .ports import AllocationBackend, IsolationVerdict, SessionIsolationProvider
from .reasons import Reason
from .steady_clock import steady_time
from .store import Store, StoreThread, batches
from .ways_in import closed_to_network, needs_network

_log = logging.getLogger(__name__)
MAX_SOCKET_PATH_BYTES = 107  # sun_path, less its final NUL; zmq allows no more
_ISOLATION_DEADLINE_S = 120.0
_FOLDERS_DEADLINE_S = 15.0  # an automounter may take its time

SandboxFor = Callable[[WorkloadSpec, ResourceProfile], Mapping[str, Any]]


@dataclass(frozen=True)
class AdmissionRequest:
    """What a person asks for. `socket_path` is the longest kernel socket that will be bound for it."""

    owner: str
    profile: str  # "" = the site's default
    spec: WorkloadSpec
    launch: KernelLaunch
    socket_path: str = ""


@dataclass(frozen=True)
class Admitted:
    profile: ResourceProfile
    backend: AllocationBackend


class Admission:
    def __init__(
        self,
        config: SiteConfig,
        backends: Mapping[str, AllocationBackend],
        store: StoreThread,
        sandbox_for: SandboxFor,
        clock: Callable[[], float] = steady_time,
        listens: bool = True,
    ) -> None:
        """`listens`: whether workers of other machines can reach us."""
        self._listens = listens
        self._config = config
        self._backends = backends
        self._store = store
        self._sandbox_for = sandbox_for
        self._clock = clock

    async def admit(self, request: AdmissionRequest) -> Admitted:
        """Raises Refused, which is recorded with who and why (INV-12)."""
        try:
            return await self._admit(request)
        except Refused as refusal:
            await self.record(request.owner, refusal)
            raise

    def check_profile(self, name: str) -> None:
        """Whether sessions of it could be asked for, as far as is known without asking anybody. Raises Refused."""
        profile = self._known_profile(name)
        self._check_way_in(profile, self._backend_of(profile))

    async def record(self, owner: str, refusal: Refused) -> None:
        """A refusal makes no state where there is none (INV-10); then the log has it alone."""
        _log.warning("refused a request of %s: %s: %s", owner, refusal.reason, refusal)
        if self._store.exists:
            await self._store.run(Store.record, None, "refused", owner, refusal.reason, str(refusal), self._clock())

    async def _admit(self, request: AdmissionRequest) -> Admitted:
        """The order is fixed: what is cheap and the person's own comes before what must be asked."""
        profile = self._as_chosen(self._known_profile(request.profile), request.spec)
        backend = self._backend_of(profile)
        await self._check_folders(request, profile)
        is_batch = isinstance(request.spec, BatchSpec)  # it needs no server, hence no way in
        if not is_batch:
            self._check_way_in(profile, backend)
        await verify_isolation(backend, profile, request.launch.transport)
        await (self._check_batches if is_batch else self._check_quota)(request.owner)
        return Admitted(profile, backend)

    def _known_profile(self, name: str) -> ResourceProfile:
        wanted = name or self._config.default_profile
        profile = self._config.profiles.get(wanted)
        if profile is None:
            known = ", ".join(sorted(self._config.profiles))
            where = self._config.place_of("profiles") or "no cluster.toml"
            raise Refused(Reason.INVALID_SPEC, f"There is no profile {wanted!r} ({where}). Choose one of: {known}.")
        return profile

    def _as_chosen(self, profile: ResourceProfile, spec: WorkloadSpec) -> ResourceProfile:
        if not isinstance(spec, SessionSpec):
            return profile
        if (sentence := profile.refusal_of(spec.choice)) is not None:
            raise Refused(Reason.POLICY_REJECTED, sentence)
        return profile.with_choice(spec.choice)

    def _backend_of(self, profile: ResourceProfile) -> AllocationBackend:
        backend = self._backends.get(profile.backend)
        where = self._config.place_of("profiles", profile.name, "backend")
        if backend is None:
            known = ", ".join(sorted(self._backends)) or "none"
            raise Refused(
                Reason.BACKEND_UNAVAILABLE,
                f"Profile {profile.name!r} names the backend {profile.backend!r}{_at(where)}, which is not installed. "
                f"Installed: {known}. Install it, or choose another profile.",
            )
        try:
            check_profile(self._config, backend, profile)
        except ConfigError as error:
            raise Refused(Reason.INVALID_SPEC, str(error)) from error
        return backend

    def _check_way_in(self, profile: ResourceProfile, backend: AllocationBackend) -> None:
        if needs_network(profile, backend) and not self._listens:
            raise closed_to_network(profile)

    async def _check_folders(self, request: AdmissionRequest, profile: ResourceProfile) -> None:
        """What looks at files. A network folder that hangs refuses its own session, and holds up nobody else's."""

        def look() -> None:
            check_spec(request, profile)
            self._check_policy(request.spec, profile)

        try:
            await looked_at(look, _FOLDERS_DEADLINE_S)
        except CouldNotAsk as error:
            raise Refused(
                Reason.WORKSPACE_UNREACHABLE,
                f"The workspace {request.spec.workspace!r}, or another folder that the session would see, does not "
                f"answer ({error}). Try again once its file system does, or choose another folder.",
            ) from error

    def _check_policy(self, spec: WorkloadSpec, profile: ResourceProfile) -> None:
        """The site's rules: what may be visible inside. Computed here only to see that it can be."""
        try:
            self._sandbox_for(spec, profile)
        except (SandboxError, ValueError) as error:
            raise Refused(Reason.POLICY_REJECTED, str(error)) from error

    async def _check_quota(self, owner: str) -> None:
        """Counted again inside the transaction that opens the session; here it only says no early."""
        if not self._store.exists:
            return
        held = await self._store.run(Store.active_sessions, owner)
        if held >= self._config.limits.max_sessions:
            raise Refused(
                Reason.QUOTA_EXCEEDED,
                f"{Reason.QUOTA_EXCEEDED.sentence} ({held} of {self._config.limits.max_sessions}, limits.max_sessions)",
            )

    async def _check_batches(self, owner: str) -> None:
        """As for sessions, of which a BATCH takes no place."""
        if self._store.exists and await self._store.run(batches.active, owner) >= self._config.limits.max_batches:
            raise Refused(Reason.QUOTA_EXCEEDED, batches.too_many(self._config.limits.max_batches))


def check_profile(config: SiteConfig, backend: AllocationBackend, profile: ResourceProfile) -> None:
    """Raises ConfigError, with file and line of what the backend does not accept."""
    try:
        backend.check_profile(profile)
    except ConfigError as error:
        where = config.place_of("profiles", profile.name, *filter(None, [error.key]))
        raise ConfigError(f"Profile {profile.name!r}{_at(where)}: {error}", error.key) from error


def check_spec(request: AdmissionRequest, profile: ResourceProfile) -> None:
    """The request itself: folders, command, and the bound of the system on socket paths."""
    spec, launch = request.spec, request.launch
    if profile.workspace is not WorkspacePolicy.PRIVATE:  # a private one is made afresh with the attempt
        for label, folder in (("workspace", spec.workspace), ("working", spec.cwd), ("working", launch.cwd)):
            _check_folder(label, folder)
    visible = [os.path.realpath(each) for each in (spec.workspace, *profile.share, *profile.share_read_only)]
    for folder in (spec.cwd, launch.cwd):
        if not any(Path(os.path.realpath(folder)).is_relative_to(each) for each in visible):
            raise _invalid(
                f"The working folder {folder!r} lies outside the workspace {spec.workspace!r}. Choose one inside it"
            )
    if isinstance(spec, BatchSpec):
        check_command(launch.argv, launch.env, spec.cwd, profile)
        return
    if not launch.argv or not all(launch.argv):
        raise _invalid(
            f"The kernelspec {spec.kernel_name!r} has no command to run. Add a non-empty argv to its kernel.json"
        )
    if any("\0" in part for part in (*launch.argv, *launch.env, *launch.env.values())):
        raise _invalid(f"The kernelspec {spec.kernel_name!r} holds a NUL character. Remove it from its kernel.json")
    length = len(os.fsencode(request.socket_path))
    if length > MAX_SOCKET_PATH_BYTES:
        raise _invalid(
            f"The socket path {request.socket_path!r} has {length} bytes, "
            f"and the system allows {MAX_SOCKET_PATH_BYTES}. Set XDG_RUNTIME_DIR to a folder with a shorter path"
        )


async def verify_isolation(backend: AllocationBackend, profile: ResourceProfile, transport: KernelTransport) -> None:
    """Raises Refused(ISOLATION_UNVERIFIED) unless the backend proves it, now. Asked again before every attempt."""
    verdict = await _verdict(backend, profile, transport)
    if not verdict.verified:
        raise Refused.because(Reason.ISOLATION_UNVERIFIED, verdict.sentence)


async def _verdict(
    backend: AllocationBackend, profile: ResourceProfile, transport: KernelTransport
) -> IsolationVerdict:
    if not isinstance(backend, SessionIsolationProvider):
        return IsolationVerdict(False, f"The backend {backend.name!r} has no way to prove it. Choose another profile.")
    try:
        async with asyncio.timeout(_ISOLATION_DEADLINE_S):
            return await backend.isolates_session_credentials(profile, transport.needs_private_network)
    except TimeoutError:
        return IsolationVerdict(False, f"The proof did not end within {_ISOLATION_DEADLINE_S:g} s. Try again.")
    except Exception as error:  # a probe that breaks has proven nothing
        return IsolationVerdict(False, f"The proof could not be carried out: {error}")


def _check_folder(label: str, folder: str) -> None:
    path = Path(folder)
    if not path.is_absolute() or "\0" in folder:
        raise _invalid(f"The {label} folder {folder!r} is not an absolute path. Name it from the root")
    try:
        found = path.is_dir()
    except OSError as error:
        raise _invalid(f"The {label} folder {folder!r} cannot be looked at ({error.strerror}). Check it") from error
    if not found:
        raise _invalid(f"The {label} folder {folder!r} does not exist. Create it, or choose another one")
    if not os.access(path, os.R_OK | os.X_OK):
        raise _invalid(f"The {label} folder {folder!r} cannot be entered. Give yourself the right to read it")


def _invalid(sentence: str) -> Refused:
    return Refused(Reason.INVALID_SPEC, f"{sentence}.")


def _at(where: str) -> str:
    return f" ({where})" if where else ""
