"""A whole control plane for tests: the real store, reconciler and session service over a fake backend and fake workers.

Time is a clock that the test moves, turns are taken when the test says so, and `restart` is a `kill -9` of the process
as far as everything but the file system can tell.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from openai4s_provisioner.orchestration.admission import Admission, AdmissionRequest
from openai4s_provisioner.orchestration.attempt import AttemptPreparer
from openai4s_provisioner.orchestration.bootstrap import CredentialIssuer
from openai4s_provisioner.orchestration.changes import ChangeBoard
from openai4s_provisioner.orchestration.config import Policy, SiteConfig
from openai4s_provisioner.orchestration.daemons import Daemon
from openai4s_provisioner.orchestration.executor import Executor
from openai4s_provisioner.orchestration.frontdesk import StoreFrontDesk
from openai4s_provisioner.orchestration.launches import LaunchBook
from openai4s_provisioner.orchestration.models import (
    KernelLaunch,
    LinkState,
    Registration,
    ResourceProfile,
    SessionSpec,
)
from openai4s_provisioner.orchestration.outbox import Outbox
from openai4s_provisioner.orchestration.ports import AllocationBackend
from openai4s_provisioner.orchestration.reclaimer import LeaseNotice, Reclaimer
from openai4s_provisioner.orchestration.reconciler import Reconciler
from openai4s_provisioner.orchestration.reports import WorkerReports
from openai4s_provisioner.orchestration.session import OpenedSession, SessionRequest, SessionService
from openai4s_provisioner.orchestration.store import Situation, Store, StoreThread
from openai4s_provisioner.orchestration.ways_in import WaysIn
from openai4s_provisioner.orchestration.workspace_proof import answer_name

from .faulty_backends import ManualClock

OWNER = "somebody"
_SECRET = b"s" * 32
_PATIENCE_S = 30.0


@dataclass
class FakeChannel:
    """The way to the workers, as a list. Knows the workers that the test has dialled in."""

    known: set[tuple[str, int]] = field(default_factory=set)
    sent: list[tuple[str, int, Mapping[str, Any]]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    held: set[str] = field(default_factory=set)

    def send(self, allocation_id: str, rank: int, message: Mapping[str, Any]) -> bool:
        if (allocation_id, rank) not in self.known:
            return False
        self.sent.append((allocation_id, rank, message))
        return True

    def hold(self, allocation_id: str, is_paused: bool) -> None:
        (self.held.add if is_paused else self.held.discard)(allocation_id)

    def forget(self, allocation_id: str) -> None:
        self.forgotten.append(allocation_id)
        self.known = {each for each in self.known if each[0] != allocation_id}

    def types(self) -> list[str]:
        return [str(message["type"]) for _, _, message in self.sent]


def in_lab(
    folder: Path,
    scenario: Callable[[ControlLab], Awaitable[None]],
    *backends: AllocationBackend,
    clock: ManualClock,
    **options: Any,
) -> None:
    """Run a scenario on a loop of its own, and end everything afterwards."""

    async def life() -> None:
        lab = ControlLab(folder, *backends, clock=clock, **options)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await scenario(lab)
        finally:
            await lab.close()

    asyncio.run(life())


class ControlLab:
    """One control plane after the other over one folder."""

    def __init__(
        self,
        folder: Path,
        *backends: AllocationBackend,
        clock: ManualClock,
        policy: Policy | None = None,
        nodes: int = 1,
        max_sessions: int = 100,
        bundle: Path | None = None,
    ) -> None:
        self.workspace = folder / "work"
        self.state_dir = folder / "state"
        self.exchange_dir = folder / "exchange"
        self.workspace.mkdir(exist_ok=True)
        self.clock = clock
        self.policy = policy or Policy(call_deadline_s=2.0)
        self.backends = {backend.name: backend for backend in backends}
        profiles = {name: ResourceProfile(name, name, nodes=nodes) for name in self.backends}
        self.config = SiteConfig(profiles, next(iter(profiles)), policy=self.policy)
        self.config = replace(self.config, limits=replace(self.config.limits, max_sessions=max_sessions))
        self.channel = FakeChannel()
        self.clients_connected = False
        self.bundle = bundle or self.exchange_dir / "worker.pyz"  # fake backends never run it
        self.notices: list[LeaseNotice] = []
        self._numbers = 0
        self._build()

    def _build(self) -> None:
        self.issuer = CredentialIssuer(_SECRET)
        self.store = StoreThread(self.state_dir)
        self.daemon = Daemon(self.store, self.clock, wall=self.clock)
        self.launches: LaunchBook = {}
        self.changes = ChangeBoard()
        self.outbox = Outbox(self.channel)
        self.preparer = AttemptPreparer(
            state_dir=self.state_dir,
            exchange_dir=self.exchange_dir,
            issuer=self.issuer,
            launches=self.launches,
            sandbox_for=lambda spec, profile: {"workspace": spec.workspace},
            bundle_path=lambda: self.bundle,
            ways_in=lambda: WaysIn("unix:/nowhere/gw.sock", ("tls:nowhere:9000",), "0" * 64),
            server_grace_s=60.0,
            clock=self.clock,
        )
        self.desk = StoreFrontDesk(self.store, self.issuer, self.clock)
        self.executor = Executor(
            store=self.store,
            daemon=self.daemon,
            config=self.config,
            policy=self.policy,
            backends=self.backends,
            preparer=self.preparer,
            outbox=self.outbox,
            launches=self.launches,
            turned_away=self.desk.turned_away,
            clock=self.clock,
        )
        self.reconciler = Reconciler(
            store=self.store,
            daemon=self.daemon,
            config=self.config,
            executor=self.executor,
            changes=self.changes,
            policy=self.policy,
            can_recover=self._can_recover,
            clock=self.clock,
        )
        self._build_sessions()

    async def _can_recover(self, situation: Situation) -> bool:
        return self.clients_connected and situation.workload.workload_id in self.launches

    def _build_sessions(self) -> None:
        self.admission = Admission(
            self.config, self.backends, self.store, lambda spec, profile: {"workspace": spec.workspace}
        )
        self.sessions = SessionService(
            config=self.config,
            store=self.store,
            admission=self.admission,
            daemon=self.daemon,
            launches=self.launches,
            outbox=self.outbox,
            changes=self.changes,
            poke=self.reconciler.poke,
            clock=self.clock,
        )
        self.reports = WorkerReports(
            store=self.store,
            sessions=self.sessions,
            outbox=self.outbox,
            changes=self.changes,
            poke=self.reconciler.poke,
            issuer=self.issuer,
            policy=self.policy,
            clock=self.clock,
        )
        self.reclaimer = Reclaimer(
            store=self.store,
            daemon=self.daemon,
            period_s=self.policy.period_s,
            announce=self.changes.announce,
            notify=self.notices.append,
            clock=self.clock,
        )

    async def close(self) -> None:
        await self.reconciler.stop()
        await self.reports.stop()
        await self.daemon.retire()
        self.store.close()

    async def restart(self) -> None:
        """The process is gone without a goodbye: its lock is free, its memory lost, its rows as they were."""
        await self.reconciler.stop()
        await self.reports.stop()
        self.daemon.drop_lock()
        self.store.close()
        self.channel.known.clear()
        self._build()
        self.reports.start()
        await self.reconciler.adopt()

    # -- what people do --------------------------------------------------------------------------------------------

    def request(self, kernel_id: str = "", profile: str = "") -> SessionRequest:
        self._numbers += 1
        folder = str(self.workspace)
        return SessionRequest(
            kernel_id or f"kernel-{self._numbers}",
            AdmissionRequest(OWNER, profile, SessionSpec(folder, folder, "python3"), self.launch()),
        )

    def launch(self) -> KernelLaunch:
        self._numbers += 1
        return KernelLaunch(
            f"launch-{self._numbers}", ("python", "-m", "k"), {"HF_TOKEN": "x"}, str(self.workspace), "key"
        )

    async def open(self, kernel_id: str = "", profile: str = "") -> OpenedSession:
        if not self.reports.is_running:
            self.reports.start()
        return await self.sessions.open(self.request(kernel_id, profile))

    # -- time ------------------------------------------------------------------------------------------------------

    async def turns(self, count: int = 1) -> None:
        for _ in range(count):
            await self.reconciler.turn()

    async def turns_until(self, condition: Callable[[], Any], most: int = 30) -> None:
        """Take turns, 5 s of the clock each, until the condition holds."""
        for _ in range(most):
            if condition():
                return
            await self.reconciler.turn()
            self.clock.forward(5.0)
        assert condition(), "still not true"

    # -- what workers do -------------------------------------------------------------------------------------------

    async def credential(self, opened: OpenedSession, rank: int = 0) -> str:
        """What the worker finds in its attempt file."""
        path = self.preparer.attempt_dir(opened.allocation_id) / f"rank-{rank}.json"
        return str(json.loads(await asyncio.to_thread(path.read_text))["credential"])

    async def dial(self, opened: OpenedSession, rank: int = 0) -> Registration | None:
        """A worker dials in with its credential."""
        answer = self.desk.register(await self.credential(opened, rank), b"k" * 32, f"host-{rank}")
        who = await asyncio.wrap_future(answer)
        if who is not None:
            self.channel.known.add((opened.allocation_id, rank))
            self.reports.worker_registered(who, f"host-{rank}", "generation")
            await self.heard()
        return who

    async def report(self, opened: OpenedSession, message: Mapping[str, Any], rank: int = 0) -> None:
        self.reports.worker_message(opened.allocation_id, rank, message)
        await self.heard()

    async def link(self, opened: OpenedSession, state: LinkState, rank: int = 0) -> None:
        self.reports.worker_link(opened.allocation_id, rank, state)
        await self.heard()

    async def heard(self) -> None:
        await asyncio.sleep(0)  # what was posted from "another thread" is in the inbox now
        await self.reports.settled()

    async def answer_workspace(self, opened: OpenedSession, rank: int = 0) -> None:
        """The inner read the nonce and wrote its answer."""
        nonce = self.issuer.workspace_nonce(opened.allocation_id)
        name = answer_name(opened.allocation_id, rank)
        await asyncio.to_thread((self.workspace / name).write_text, nonce)
        message = {"type": "workspace", "ok": True, "code": "ready", "detail": "", "nonce": nonce, "answer_name": name}
        await self.report(opened, message, rank)

    async def start_kernel(self, opened: OpenedSession, launch_id: str = "") -> None:
        """The sandbox held, the kernel runs and has answered."""
        launch_id = launch_id or opened.launch_id
        await self.report(
            opened, {"type": "isolation", "launch_id": launch_id, "ok": True, "sentence": "", "attacks": {}}
        )
        await self.report(opened, {"type": "kernel_started", "launch_id": launch_id, "pid": 4242})
        await self.sessions.kernel_ready(launch_id)

    async def active_session(self, kernel_id: str = "", profile: str = "") -> OpenedSession:
        """A session with all four conditions."""
        opened = await self.open(kernel_id, profile)
        await self.turns(2)
        situation = await self.sessions.situation(opened.workload_id)
        for rank in range(situation.allocation.nodes):
            assert await self.dial(opened, rank) is not None
            await self.answer_workspace(opened, rank)
        await self.start_kernel(opened)
        await self.turns(2)
        return opened

    async def situation(self, opened: OpenedSession) -> Situation:
        return await self.sessions.situation(opened.workload_id)

    async def events(self, opened: OpenedSession) -> list[str]:
        return [event.kind for event in await self.store.run(Store.events, opened.workload_id)]
