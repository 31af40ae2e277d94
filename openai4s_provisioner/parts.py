"""Builds and wires the parts of a control plane, in start order; stops them in the opposite one.

Two stages, because a refusal must write nothing: what answers admission exists from the first question on; what makes
files, sockets and threads (`RunningParts`) comes with the first session that is admitted.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from .app_values import AppSettings
from .gateway.certificate import load_certificate
from .gateway.listen_address import AdvertisedAddress, ListenAddress, parse_advertise, parse_listen
from .gateway.worker_gateway import LinkState, NetworkDoor, Registration, WorkerGateway
from .live_kernels import LiveKernels
from .live_tasks import LiveTasks
from .orchestration.address_keeper import AddressKeeper
from .orchestration.admission import Admission
from .orchestration.attempt import AttemptPreparer
from .orchestration.bootstrap import CredentialIssuer, load_secret
from .orchestration.bundle import write_worker_zipapp
from .orchestration.changes import ChangeBoard
from .orchestration.config import SiteConfig, load_config
from .orchestration.daemons import Daemon
from .orchestration.errors import ConfigError
from .orchestration.executor import Executor
from .orchestration.frontdesk import StoreFrontDesk
from .orchestration.launches import LaunchBook
from .orchestration.models import Allocation, Kind, ResourceProfile
from .orchestration.outbox import Outbox
from .orchestration.ports import AllocationBackend, BackendFactory, BoundedInTime, MaskProvider, WorkerChannel
from .orchestration.private_folder import prepare_folder
from .orchestration.reclaimer import Reclaimer
from .orchestration.reconciler import Reconciler, never
from .orchestration.reports import WorkerReports
from .orchestration.session import SessionService
from .orchestration.store import Situation, StoreThread, leases
from .orchestration.tasks import TaskDesk
from .orchestration.usage import UsageBoard
from .orchestration.walltime_desk import Extended, WalltimeDesk
from .orchestration.walltime_watch import WalltimeWatch
from .orchestration.ways_in import WaysIn
from .session_sandbox import SessionSandbox
from .transport.locked_folder import PrivateFolder, remove_leftovers
from .worker.scratch import scratch_parent

BACKENDS = "openai4s_provisioner.backends"


def load_site_config(settings: AppSettings) -> SiteConfig:
    """`cluster.toml` as the settings find it. Raises ConfigError."""
    return load_config(settings.cluster_toml, os.environ, settings.config_path)


def load_backends(config: SiteConfig, settings: AppSettings) -> dict[str, AllocationBackend]:
    """The backends that profiles name, through their entry points; the others are never imported.

    Raises ConfigError. One that is not installed is left out: admission says so to whoever asks for it.
    """
    named = {profile.backend for profile in config.profiles.values()}
    installed = {entry.name: entry for entry in entry_points(group=BACKENDS)}
    for name in config.backends:
        if name not in named and name not in installed:  # its options would count for nothing
            raise ConfigError(
                f"{config.place_of('backends', name)}: [backends.{name}] names a backend that is not installed and "
                f"that no profile uses. Installed: {', '.join(sorted(installed))}. Correct the name, or remove it."
            )
    return {name: _made(entry, config, settings) for name, entry in installed.items() if name in named}


def _made(entry: EntryPoint, config: SiteConfig, settings: AppSettings) -> AllocationBackend:
    options = config.backends.get(entry.name, {})
    try:
        factory: BackendFactory = entry.load()
        backend = factory(state_dir=settings.state_dir, exchange_dir=settings.exchange_dir, options=options)
        _check_answers_in_time(entry.name, backend, options, config.policy.call_deadline_s)
        return backend
    except ConfigError as error:
        at = _place_before(config, entry.name, *filter(None, [error.key]))
        raise ConfigError(f"{at}{error}", error.key) from error
    except Exception as error:  # a package of somebody else's
        told = f"the backend {entry.name!r} cannot be loaded ({type(error).__name__}: {error})"
        at = _place_before(config, entry.name)
        raise ConfigError(f"{at}{told}. Repair what is installed, or name another one.") from error


def _place_before(config: SiteConfig, *path: str) -> str:
    place = config.place_of("backends", *path)
    return f"{place}: " if place else ""


def _check_answers_in_time(
    name: str, backend: AllocationBackend, options: Mapping[str, Any], deadline_s: float
) -> None:
    """Otherwise every answer would come too late, and count as none. Raises ConfigError."""
    bounds = backend.answer_bounds if isinstance(backend, BoundedInTime) else {}
    if sum(bounds.values()) > deadline_s:
        told = " and ".join(f"{key} = {seconds:g}" for key, seconds in bounds.items())
        raise ConfigError(
            f"[backends.{name}]: {told} may take longer together than a question has: call_deadline_s = {deadline_s:g} "
            "of [control]. Lower one of them, or raise that.",
            next((key for key in bounds if key in options), ""),
        )


def _network_settings(settings: AppSettings) -> tuple[ListenAddress | None, tuple[AdvertisedAddress, ...]]:
    """Where to listen (None: nowhere), and what to advertise. Raises ConfigError."""
    advertise = tuple(parse_advertise(text) for text in settings.worker_advertise)
    if settings.worker_listen:
        return parse_listen(settings.worker_listen), advertise
    if advertise:
        raise ConfigError(
            "OpenAI4S.worker_advertise is set, but no port is open. Set OpenAI4S.worker_listen as well, or neither."
        )
    return None, ()


class AdmissionParts:
    """What answers "may I?". Makes no file, no socket and no thread."""

    def __init__(self, settings: AppSettings) -> None:
        self.settings = settings
        self.config = load_site_config(settings)
        self.backends = load_backends(self.config, settings)
        self.listen, self.advertise = _network_settings(settings)
        self.store = StoreThread(settings.state_dir)
        folders = (settings.state_dir, settings.exchange_dir, settings.workspaces_dir, settings.jupyter_folders)
        self.sandbox = SessionSandbox(Path.home(), *folders, self._masks)
        self.admission = Admission(
            self.config, self.backends, self.store, self.sandbox, listens=self.listen is not None
        )
        self.walltime = WalltimeDesk(self.config, self.backends, self.store)

    def _masks(self, profile: ResourceProfile) -> Sequence[str]:
        backend = self.backends.get(profile.backend)
        return backend.masks(profile) if isinstance(backend, MaskProvider) else ()

    def network_door(self) -> NetworkDoor | None:
        """What to listen on, with the certificate, which is made now if there is none. None: open no port."""
        if self.listen is None:
            return None
        return NetworkDoor(self.listen, self.advertise, load_certificate(self.settings.state_dir))

    async def stop(self) -> None:
        for backend in self.backends.values():
            await backend.close()
        await asyncio.to_thread(self.store.close)


def credential_issuer(settings: AppSettings) -> CredentialIssuer:
    """With the secret of this state folder; both are made now if they are missing. Raises StateError."""
    prepare_folder(settings.state_dir)
    return CredentialIssuer(load_secret(settings.state_dir))


class Driving:
    """What carries workloads forward: the same in a server, and in a short-lived process that has no gateway."""

    def __init__(
        self,
        admitting: AdmissionParts,
        issuer: CredentialIssuer,
        workers: WorkerChannel,
        ways_in: Callable[[], WaysIn],
        turned_away: Callable[[Allocation], str] = lambda allocation: "",
        can_recover: Callable[[Situation], Awaitable[bool]] = never,
        adopts: Kind | None = None,
        end_moved: Callable[[], None] = lambda: None,
    ) -> None:
        """`ways_in`: where the workers of an attempt dial; `turned_away`: why some may not have come in.
        `can_recover` and `adopts` are the reconciler's. `end_moved`: called when an allocation's own end became known,
        or another."""
        settings, config, store = admitting.settings, admitting.config, admitting.store
        self.changes, self.launches, self.daemon = ChangeBoard(), LaunchBook(), Daemon(store)
        self.outbox = Outbox(workers)
        self.preparer = AttemptPreparer(
            state_dir=settings.state_dir,
            exchange_dir=settings.exchange_dir,
            issuer=issuer,
            launches=self.launches,
            sandbox_for=admitting.sandbox,
            prepare_homes=admitting.sandbox.prepare,
            sweep_scratch=lambda: remove_leftovers(scratch_parent()),
            bundle_path=lambda: write_worker_zipapp(settings.exchange_dir),
            ways_in=ways_in,
            server_grace_s=config.limits.server_grace_s,
        )
        executor = Executor(
            store=store,
            daemon=self.daemon,
            config=config,
            policy=config.policy,
            backends=admitting.backends,
            preparer=self.preparer,
            outbox=self.outbox,
            launches=self.launches,
            turned_away=turned_away,
            end_moved=end_moved,
        )
        self.reconciler = Reconciler(
            store=store,
            daemon=self.daemon,
            config=config,
            executor=executor,
            changes=self.changes,
            policy=config.policy,
            can_recover=can_recover,
            adopts=adopts,
        )


class _Relay:
    """The gateway and the reports need each other; the gateway says nothing before it is started."""

    reports: WorkerReports
    tasks: LiveTasks

    def worker_registered(self, registration: Registration, host: str, generation: str) -> None:
        self.reports.worker_registered(registration, host, generation)

    def worker_message(self, allocation_id: str, rank: int, message: Mapping[str, Any]) -> None:
        if str(message.get("type")).startswith("task_"):
            self.tasks.worker_message(allocation_id, message)
        else:
            self.reports.worker_message(allocation_id, rank, message)

    def worker_link(self, allocation_id: str, rank: int, state: LinkState) -> None:
        self.reports.worker_link(allocation_id, rank, state)


class RunningParts:
    """What drives sessions. Made on the control thread's loop, after a first request was admitted."""

    def __init__(self, admitting: AdmissionParts, folder: PrivateFolder) -> None:
        config, store = admitting.config, admitting.store
        self._folder = folder
        self._store = store
        issuer = credential_issuer(admitting.settings)
        self.usage = UsageBoard()
        observer = _Relay()
        desk = StoreFrontDesk(store, issuer)
        self.gateway = WorkerGateway(Path(folder.path) / "gw", desk, observer, network=admitting.network_door())
        driving = Driving(
            admitting,
            issuer,
            self.gateway,
            self._ways_in,
            desk.turned_away,
            can_recover=self._can_recover,
            end_moved=lambda: self.walltime_watch.loop.poke(),
        )
        outbox, changes, daemon = driving.outbox, driving.changes, driving.daemon
        self._daemon = daemon
        self.reconciler = driving.reconciler
        told = (driving.preparer.attempt_dir, self._ways_in)
        self._address_keeper = AddressKeeper(store, daemon, config, admitting.backends, *told)
        self.sessions = SessionService(
            config=config,
            store=store,
            admission=admitting.admission,
            daemon=daemon,
            launches=driving.launches,
            outbox=outbox,
            changes=changes,
            poke=self.reconciler.poke,
        )
        self.reports = WorkerReports(
            store=store,
            sessions=self.sessions,
            outbox=outbox,
            changes=changes,
            poke=self.reconciler.poke,
            issuer=issuer,
            policy=config.policy,
            leases_changed=lambda: self.reclaimer.loop.poke(),
            usage=self.usage,
            memory_limit_mb=lambda name: config.profiles[name].memory_mb if name in config.profiles else 0,
        )
        self.tasks = LiveTasks(store, daemon, outbox, TaskDesk(config, admitting.backends, store))
        observer.reports, observer.tasks = self.reports, self.tasks
        self.kernels = LiveKernels(self.sessions, self.gateway, config.policy.kernel_answer_s)
        self.reclaimer = self._make_reclaimer(config, changes)
        self.walltime_watch = self._make_walltime_watch(admitting)
        self._walltime, self._changes = admitting.walltime, changes

    def _make_reclaimer(self, config: SiteConfig, changes: ChangeBoard) -> Reclaimer:
        def announce(workload_id: str) -> None:
            changes.announce(workload_id)
            self.reconciler.poke(workload_id)

        return Reclaimer(
            store=self._store,
            daemon=self._daemon,
            period_s=config.policy.period_s,
            announce=announce,
            notify=self.kernels.notice,
        )

    def _make_walltime_watch(self, admitting: AdmissionParts) -> WalltimeWatch:
        return WalltimeWatch(
            store=self._store,
            daemon=self._daemon,
            config=admitting.config,
            can_extend=admitting.walltime.can_extend,
            notify=self.kernels.notice,
        )

    def _ways_in(self) -> WaysIn:
        return WaysIn(self.gateway.address, self.gateway.network_addresses, self.gateway.certificate_sha256)

    async def _can_recover(self, situation: Situation) -> bool:
        return await self.kernels.can_recover(situation)

    def start(self) -> None:
        self.gateway.start()
        self.reports.start()
        self.tasks.start()
        self.reconciler.start()
        self.reclaimer.loop.start()
        self.walltime_watch.loop.start()
        self._address_keeper.start()

    async def stop(self) -> None:
        await self.kernels.close()
        await self.reclaimer.loop.stop()
        await self.walltime_watch.loop.stop()
        await self._address_keeper.stop()
        await self.reconciler.stop()
        await asyncio.to_thread(self.gateway.stop)
        await self.tasks.stop()
        await self.reports.stop()
        await self._daemon.retire()
        self._folder.remove()

    async def keep(self, kernel_id: str, actor: str) -> leases.Kept:
        """Renew a kernel's idle clock. Raises Refused or SessionEnded."""
        kept = await self._store.run(leases.keep, kernel_id, actor, time.time())
        self.reclaimer.loop.poke()
        return kept

    async def extend(self, workload_id: str, seconds: int, actor: str, *, owner: str | None = None) -> Extended:
        """Put the end of a session's allocation off. Raises Refused."""
        extended = await self._walltime.extend(workload_id, seconds, actor, owner=owner)
        self.walltime_watch.loop.poke()
        self._changes.announce(workload_id)
        return extended
