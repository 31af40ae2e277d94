"""What the crash harness interrupts: each part of a session's life, told once, on a real store and a real backend.

A scenario's first half prepares; its second half, behind `world.arm()`, is where the process may die. What a caller
was promised is written down at once, so that it can be held against what the next process finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import psutil

import openai4s_backend_local
from openai4s_provisioner.orchestration import reconciler
from openai4s_provisioner.orchestration.config import Policy
from openai4s_provisioner.orchestration.models import LinkState, Phase
from openai4s_provisioner.orchestration.ports import AllocationBackend
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.session import OpenedSession
from openai4s_provisioner.orchestration.store import Situation
from openai4s_provisioner.testing import tiny_program
from openai4s_provisioner.testing.control_lab import ControlLab
from openai4s_provisioner.testing.crash_points import BackendWithCrashPoints, CrashPoints
from openai4s_provisioner.testing.durable_backend import BackendOfFiles
from openai4s_provisioner.testing.faulty_backends import ManualClock

KERNEL = "kernel-1"
START = 1_000_000.0
LOCAL, FILES = "local", "files"
_POLICY = Policy(call_deadline_s=20.0, recovery_pause_s=0.05, drain_s=5.0, cancel_again_s=5.0, workspace_settle_s=5.0)
_MOST_TURNS = 400


class World:
    """One folder, one backend over it, and one control plane at a time."""

    def __init__(self, folder: Path, backend: str, points: CrashPoints) -> None:
        self.folder = folder
        self.points = points
        self.kind = backend
        self.promises = folder / "promises"
        reconciler._FIRST_PAUSE_S = 0.0  # a failing step is tried again at once: time is the harness's here

    def real_backend(self) -> AllocationBackend:
        if self.kind == FILES:
            return BackendOfFiles(self.folder / "allocations")
        return openai4s_backend_local.create_backend(
            state_dir=self.folder / "state",
            exchange_dir=self.folder / "exchange",
            options={},
        )

    def lab(self, now: float) -> ControlLab:
        backend = BackendWithCrashPoints(self.real_backend(), self.points)
        program = self.folder / "program.py"
        if not program.exists():
            shutil.copy(str(tiny_program.__file__), program)
        lab = ControlLab(self.folder, backend, clock=ManualClock(now), policy=_POLICY, bundle=program)
        lab._numbers = int(now)  # names of kernels and launches differ from those of the life before
        return lab

    def arm(self) -> None:
        self.points.armed = True

    def promise(self, *words: str) -> None:
        """What was told to somebody, durably before anything else happens."""
        descriptor = os.open(self.promises, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, (" ".join(words) + "\n").encode())
        os.close(descriptor)

    def running(self) -> list[str]:
        """One entry for each allocation that is not over: its workload, or its program's process."""
        if self.kind == FILES:
            return BackendOfFiles(self.folder / "allocations").running()
        return [str(process.pid) for process in self.programs()]

    def programs(self) -> list[psutil.Process]:
        found = []
        program = str(self.folder / "program.py")
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                is_shim = any("shim" in word for word in words[:4])
                if program in words and not is_shim and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def lose(self) -> None:
        """The machine fails under whatever runs."""
        if self.kind == FILES:
            BackendOfFiles(self.folder / "allocations").lose()
            return
        for process in self.programs():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)


async def until(lab: ControlLab, world: World, condition: Callable[[], Awaitable[bool]], seconds: float = 1.0) -> None:
    for _ in range(_MOST_TURNS):
        await lab.reconciler.turn()
        if await condition():
            return
        lab.clock.forward(seconds)
        if world.kind == LOCAL:
            await asyncio.sleep(0.02)  # real processes take real time
    raise AssertionError("what was waited for did not come")


async def until_phase(lab: ControlLab, world: World, opened: OpenedSession, *phases: Phase) -> Situation:
    async def is_there() -> bool:
        return (await lab.situation(opened)).allocation.phase in phases

    await until(lab, world, is_there)
    return await lab.situation(opened)


async def open_session(lab: ControlLab, world: World, kernel_id: str = KERNEL) -> OpenedSession:
    opened = await lab.open(kernel_id)
    world.promise("opened", opened.workload_id)
    return opened


async def granted(lab: ControlLab, world: World) -> OpenedSession:
    opened = await open_session(lab, world)
    await until_phase(lab, world, opened, Phase.GRANTED)
    return opened


async def become_active(lab: ControlLab, world: World, opened: OpenedSession) -> None:
    assert await lab.dial(opened) is not None
    await lab.answer_workspace(opened)
    await lab.start_kernel(opened)
    await until_phase(lab, world, opened, Phase.ACTIVE)


async def active(lab: ControlLab, world: World) -> OpenedSession:
    opened = await granted(lab, world)
    await become_active(lab, world, opened)
    return opened


async def stop(lab: ControlLab, world: World, opened: OpenedSession) -> None:
    await lab.sessions.release_kernel(KERNEL, "a person")
    world.promise("stopped", opened.workload_id, Reason.USER_CANCELLED)
    await until_phase(lab, world, opened, Phase.COMPLETED, Phase.FAILED, Phase.CANCELLED, Phase.LOST)


async def recovered(lab: ControlLab, world: World, opened: OpenedSession) -> OpenedSession:
    """Until the next epoch runs, and its worker has come."""

    async def is_granted() -> bool:
        now = await lab.situation(opened)
        return now.workload.epoch > opened.epoch and now.allocation.phase is Phase.GRANTED

    await until(lab, world, is_granted)
    now = await lab.situation(opened)
    (launch,) = now.launches
    again = replace(
        opened, allocation_id=now.allocation.allocation_id, epoch=now.workload.epoch, launch_id=launch.launch_id
    )
    await become_active(lab, world, again)
    return again


# -- the scenarios -------------------------------------------------------------------------------------------------


async def submit(lab: ControlLab, world: World) -> None:
    world.arm()
    await granted(lab, world)


async def look_up(lab: ControlLab, world: World) -> None:
    """The submission lands, its answer is lost."""
    if world.kind == FILES:
        BackendOfFiles(world.folder / "allocations").lose_next_answer()
    world.arm()
    await granted(lab, world)


async def advance(lab: ControlLab, world: World) -> None:
    opened = await granted(lab, world)
    world.arm()
    await become_active(lab, world, opened)


async def cancel(lab: ControlLab, world: World) -> None:
    opened = await active(lab, world)
    world.arm()
    await stop(lab, world, opened)


async def cancel_early(lab: ControlLab, world: World) -> None:
    """A stop in the same moment as the start."""
    opened = await open_session(lab, world)
    world.arm()
    await lab.reconciler.turn()
    await stop(lab, world, opened)


async def recover(lab: ControlLab, world: World) -> None:
    lab.clients_connected = True
    opened = await active(lab, world)
    world.lose()
    world.arm()
    await recovered(lab, world, opened)


async def replace_silent_worker(lab: ControlLab, world: World) -> None:
    lab.clients_connected = True
    opened = await active(lab, world)
    await lab.link(opened, LinkState.RECONNECTING)
    lab.clock.forward(_POLICY.worker_lost_s)
    world.arm()
    await recovered(lab, world, opened)


async def adopt(lab: ControlLab, world: World) -> None:
    """A neighbour's sessions: the one was active, the other's submission was open when it died."""
    await active(lab, world)
    await open_session(lab, world, "kernel-2")
    lab.daemon.drop_lock()
    await lab.reconciler.stop()
    await lab.reports.stop()
    heir = world.lab(lab.clock.now + 1)
    world.arm()
    await finish(heir, world)
    await heir.close()


async def finish(lab: ControlLab, world: World) -> None:
    """What the next process does: adopt, and drive everything to its end."""
    lab.reports.start()
    await lab.reconciler.adopt()

    async def all_over() -> bool:
        if not lab.store.exists:
            return True
        left: int = await lab.store.run(lambda store: store.db._connection.execute(_LEFT).fetchone()[0])
        return left == 0

    await until(lab, world, all_over, 5.0)


_LEFT = """SELECT (SELECT count(*) FROM workload WHERE ended_at IS NULL) + (SELECT count(*) FROM debris)"""

Scenario = Callable[[ControlLab, World], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {
    each.__name__: each
    for each in (submit, look_up, advance, cancel, cancel_early, recover, replace_silent_worker, adopt)
}
