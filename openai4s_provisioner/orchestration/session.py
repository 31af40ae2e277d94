"""Sessions as the rest of the program sees them: open, start a kernel, wait, stop, release.

Runs on the control thread's loop. It states wishes and reads facts; the reconciler acts. Nothing here submits,
cancels or decides a phase, and a kernel that is started again goes into the held allocation, never into a new one.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from .admission import Admission, AdmissionRequest, Admitted
from .changes import ChangeBoard
from .config import SiteConfig
from .daemons import Daemon
from .errors import Refused, SessionEnded
from .insistence import until_done
from .launches import LaunchBook, launch_json
from .models import Desired, KernelExit, KernelLaunch, OutputLoss, SessionSpec, Workload
from .outbox import Outbox
from .readiness import Readiness
from .reasons import Reason
from .steady_clock import steady_time
from .store import NewSession, Situation, Store, StoreThread


@dataclass(frozen=True)
class SessionRequest:
    """A kernel, and what is asked for it."""

    kernel_id: str
    admission: AdmissionRequest


@dataclass(frozen=True)
class OpenedSession:
    workload_id: str
    allocation_id: str
    epoch: int
    launch_id: str


class SessionService:
    """The facade of the control plane. Every method is for the control thread's loop."""

    def __init__(
        self,
        *,
        config: SiteConfig,
        store: StoreThread,
        admission: Admission,
        daemon: Daemon,
        launches: LaunchBook,
        outbox: Outbox,
        changes: ChangeBoard,
        poke: Callable[[str], None],
        clock: Callable[[], float] = steady_time,
    ) -> None:
        self._config = config
        self._store = store
        self._admission = admission
        self._daemon = daemon
        self._launches = launches
        self._outbox = outbox
        self._changes = changes
        self._poke = poke
        self._clock = clock
        self._places: dict[str, tuple[str, str]] = {}  # launch id -> ids of workload and allocation, for signals
        self.when_output_lost: Callable[[OutputLoss], None] = lambda loss: None  # for whoever tells a person
        self.when_memory_ran_out: Callable[[str], None] = lambda launch_id: None  # the same

    # -- wishes ----------------------------------------------------------------------------------------------------

    async def admit(self, request: SessionRequest) -> Admitted:
        """Ask admission, and nothing else: writes nothing where there is no state yet. Raises Refused."""
        return await self._admission.admit(request.admission)

    async def open(self, request: SessionRequest) -> OpenedSession:
        """Admit, then write workload, attempt, binding and lease in one commit. Raises Refused or StateError.

        A caller that is cancelled on the way leaves a session that is already wished stopped, never a forgotten one.
        """
        admitted = await self.admit(request)
        await self._daemon.register()
        asked, profile = request.admission, admitted.profile
        assert isinstance(asked.spec, SessionSpec)
        new = NewSession(
            workload_id=uuid.uuid4().hex,
            allocation_id=uuid.uuid4().hex,
            token=secrets.token_hex(24),
            owner=asked.owner,
            profile=profile.name,
            backend=profile.backend,
            nodes=profile.nodes,
            spec=asked.spec,
            kernel_id=request.kernel_id,
            launch_id=asked.launch.launch_id,
            leases=profile.leases,
            max_sessions=self._config.limits.max_sessions,
        )
        self._launches[new.workload_id] = asked.launch
        self._places[new.launch_id] = (new.workload_id, new.allocation_id)
        try:
            await self._store.run(Store.open_session, new, self._daemon.daemon_id, self._clock())
        except asyncio.CancelledError:
            # The write is on its way and will happen; this wish is queued right behind it.
            args = (new.workload_id, Reason.USER_CANCELLED, "Given up while it was being opened.", asked.owner)
            self._store.submit(Store.request_stop, *args, self._clock())
            raise
        except Exception as error:
            self._launches.pop(new.workload_id)
            self._places.pop(new.launch_id)
            if isinstance(error, Refused):
                await self._admission.record(asked.owner, error)
            raise
        finally:
            self._poke(new.workload_id)
        return OpenedSession(new.workload_id, new.allocation_id, 1, new.launch_id)

    async def launch_kernel(
        self, workload_id: str, kernel_id: str, launch: KernelLaunch, notebook_path: str = ""
    ) -> None:
        """Start a kernel in the held allocation: again (restart), or one more. Raises SessionEnded when it is over."""
        before = await self.situation(workload_id)
        old = before.launch(kernel_id)
        leases = self._config.profiles[before.workload.profile].leases
        allocation = await self._store.run(
            Store.bind_launch, workload_id, kernel_id, launch.launch_id, notebook_path, leases, self._clock()
        )
        self._places[launch.launch_id] = (workload_id, allocation.allocation_id)
        if any(each.kernel_id == kernel_id and each.released_at is None for each in before.bindings):
            self._launches[workload_id] = launch  # what a recovery starts again
        if old is not None and old.exit is None:
            self._outbox.send(allocation.allocation_id, 0, _stop_kernel(old.launch_id, 0.0))
        self._outbox.send(allocation.allocation_id, 0, {"type": "launch", "launch": launch_json(launch)})
        self._announce(workload_id)

    async def lost_for(self, workload_id: str) -> Reason | None:
        """Why the attempt before the present one was lost."""
        if not self._store.exists:
            return None
        events = await self._store.run(Store.events, workload_id)
        return next((each.reason for each in reversed(events) if each.kind == "recovering"), None)

    def started_anew(self, workload_id: str, launch_id: str, allocation_id: str) -> KernelLaunch | None:
        """A recovery made a new start in a new allocation: signals go there. What it is started with, if known."""
        self._places[launch_id] = (workload_id, allocation_id)
        launch = self._launches.get(workload_id)
        return launch if launch is not None and launch.launch_id == launch_id else None

    async def request_stop(self, workload_id: str, reason: Reason, actor: str, detail: str = "") -> bool:
        """Wish a session stopped, durably. Idempotent; True for the first wish, whose reason stays."""
        first = await self._store.run(Store.request_stop, workload_id, reason, detail, actor, self._clock())
        self._announce(workload_id)
        return first

    async def release_kernel(self, kernel_id: str, actor: str, reason: Reason = Reason.USER_CANCELLED) -> str | None:
        """Give a kernel back; the allocation ends with its last one. The workload it belonged to, or None.

        Nobody would ask for it again, so it waits for a state that cannot be written, or read, at the moment.
        """
        not_yet = f"kernel {kernel_id} could not be given back yet"
        workload_id = await until_done(
            lambda: self._store.run(Store.release_kernel, kernel_id, reason, actor, self._clock()), not_yet
        )
        if workload_id is None:
            return None
        situation = await until_done(lambda: self.situation(workload_id), not_yet)
        launch = situation.launch(kernel_id)
        if launch is not None and launch.exit is None and situation.workload.desired is Desired.RUNNING:
            self.stop_kernel(launch.launch_id)
        self._announce(workload_id)
        return workload_id

    def signal_kernel(self, launch_id: str, signum: int) -> bool:
        """Send a signal to a kernel's real process. False when its worker cannot be reached."""
        return self._send(launch_id, {"type": "signal", "launch_id": launch_id, "signum": signum})

    def stop_kernel(self, launch_id: str, grace_s: float = 0.0) -> bool:
        """End one kernel's sandbox; the allocation stays."""
        return self._send(launch_id, _stop_kernel(launch_id, grace_s))

    async def kernel_ready(self, launch_id: str) -> None:
        """The kernel has answered: the fourth condition."""
        await self._store.run(Store.kernel_ready, launch_id, self._clock())
        launch = await self._store.run(Store.launch, launch_id)
        if launch is not None:
            self._announce(launch.workload_id)

    # -- facts -----------------------------------------------------------------------------------------------------

    async def situation(self, workload_id: str) -> Situation:
        """Everything known of a session at this moment. Raises KeyError for one that never was."""
        found = await self._store.run(Store.situation, workload_id) if self._store.exists else None
        if found is None:
            raise KeyError(workload_id)
        return found

    async def readiness(self, workload_id: str, kernel_id: str = "") -> Readiness:
        return (await self.situation(workload_id)).readiness(kernel_id)

    async def changes(self, workload_id: str) -> AsyncIterator[Situation]:
        """The situation now, then after every change; ends behind the terminal one."""
        last: Situation | None = None
        while True:
            ticket = self._changes.ticket(workload_id)
            now = await self.situation(workload_id)
            if now != last:
                yield now
            last = now
            if now.workload.phase.is_terminal:
                self._places = {key: place for key, place in self._places.items() if place[0] != workload_id}
                return
            await ticket.wait()

    async def wait_ready(self, workload_id: str, launch_id: str) -> None:
        """Return when the four conditions hold for this start of a kernel. Cancellable.

        Raises SessionEnded, whose text is for a person, when the session or the kernel ends first.
        """
        async for now in self.changes(workload_id):
            kernel_id = _check_alive(now, launch_id)
            if now.readiness(kernel_id).is_ready:
                return

    async def wait_started(self, workload_id: str, launch_id: str) -> None:
        """Return when the kernel's process exists and only its answer is missing. Raises as `wait_ready` does."""
        async for now in self.changes(workload_id):
            launch = now.launch(_check_alive(now, launch_id))
            if launch is not None and launch.started_at is not None:
                return

    async def wait_over(self, workload_id: str) -> Workload:
        """Return the workload once it is terminal."""
        async for now in self.changes(workload_id):
            workload = now.workload
        return workload

    # -- inside ----------------------------------------------------------------------------------------------------

    def _send(self, launch_id: str, message: dict[str, Any]) -> bool:
        place = self._places.get(launch_id)
        return place is not None and self._outbox.send(place[1], 0, message)

    def _announce(self, workload_id: str) -> None:
        self._changes.announce(workload_id)
        self._poke(workload_id)


def _stop_kernel(launch_id: str, grace_s: float) -> dict[str, Any]:
    return {"type": "stop_kernel", "launch_id": launch_id, "grace_s": grace_s}


def ended_error(workload: Workload) -> SessionEnded:
    """Why a session is over, or about to be, in words for a person."""
    reason = workload.reason or Reason.USER_CANCELLED
    return SessionEnded.because(reason, workload.reason_detail)


def _check_alive(now: Situation, launch_id: str) -> str:
    """The kernel that this start belongs to. Raises SessionEnded when waiting for it has become pointless."""
    if now.workload.phase.is_terminal or now.workload.desired is Desired.STOPPED:
        raise ended_error(now.workload)
    launch = next((each for each in now.launches if each.launch_id == launch_id), None)
    if launch is None:
        raise SessionEnded(Reason.USER_CANCELLED, "Another start of this kernel has taken its place.")
    if launch.exit is not None:
        raise SessionEnded.because(Reason.KERNEL_START_FAILED, exit_detail(launch.exit))
    return launch.kernel_id


def exit_detail(ended: KernelExit) -> str:
    """How a kernel's process ended, with the last lines it printed: what follows on a reason's sentence."""
    tail = ended.tail.strip()
    if ended.signal is None and ended.exit_code is None:
        return f"It could not be started: {tail or 'its machine did not say why'}."
    how = f"signal {ended.signal}" if ended.signal else f"exit code {ended.exit_code}"
    return f"It ended with {how}." + (f" Its last lines: {tail}" if tail else "")
