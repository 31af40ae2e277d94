"""Tasks on every rank of a session, asked for from a terminal and from inside, with a real worker for each rank."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest

from openai4s_provisioner.orchestration.errors import Refused
from openai4s_provisioner.orchestration.models import ResourceProfile
from openai4s_provisioner.orchestration.tasks import TaskDesk

from .conftest import SessionLab
from .gangs import Offer, offer, state_of

__all__ = ["offer"]  # a fixture

pytestmark = pytest.mark.anyio
CLI = [sys.executable, "-m", "openai4s_provisioner.jupyter.cli"]


async def begun(lab: SessionLab, *command: str, ranks: str = "all") -> asyncio.subprocess.Process:
    words = [*CLI, "run", lab.manager.kernel_id, "--ranks", ranks, "--", *command]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*words, cwd=lab.work, stdout=pipe, stderr=pipe)


async def ran(lab: SessionLab, *command: str, ranks: str = "all") -> tuple[int | None, list[str], str]:
    """Exit status, lines of the output, sorted, and the errors."""
    process = await begun(lab, *command, ranks=ranks)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, sorted(out.decode().splitlines()), err.decode()


@pytest.fixture
async def gang(offer: Offer, lab: SessionLab, no_process_left: Any) -> AsyncIterator[SessionLab]:
    """A session of four ranks."""
    offer(4)
    await lab.start()
    yield lab
    await lab.manager.shutdown_kernel(now=True)
    no_process_left()


async def test_a_command_runs_once_on_every_rank_and_ends_as_the_worst_of_them(gang: SessionLab) -> None:
    told = "echo $OPENAI4S_RANK of $OPENAI4S_RANKS; echo $OPENAI4S_HOSTS | tr , '\\n' | wc -l; pwd"
    status, lines, err = await ran(gang, "sh", "-c", told)
    expected = [f"[{rank}] {text}" for rank in range(4) for text in (f"{rank} of 4", "4", str(gang.work))]
    assert (status, lines, err) == (0, sorted(expected), "")
    status, lines, err = await ran(gang, "sh", "-c", "echo $OPENAI4S_RANK; exit $((OPENAI4S_RANK * 7))")
    assert (status, lines) == (21, [f"[{rank}] {rank}" for rank in range(4)]), "what the launcher says is no output"
    said = "".join(f"copy {rank} exited with {rank * 7}\n" for rank in (1, 2, 3))
    assert err == f"jupyter openai4s: The launcher said: {said}"
    status, _, _ = await ran(gang, "sh", "-c", "[ $OPENAI4S_RANK != 2 ] || kill -9 $$")
    assert status == 137
    status, lines, _ = await ran(gang, "sh", "-c", "echo $OPENAI4S_RANK", ranks="first")
    assert (status, lines) == (0, ["0"])


async def test_each_copy_is_confined_like_the_kernel(gang: SessionLab, place: Any) -> None:
    attempts = state_of(place) / "exchange" / "attempts"
    told = f"ls {attempts} >/dev/null 2>&1 && echo seen; ls /proc | grep -c '^[0-9]*$' | xargs test 20 -gt && echo few"
    status, lines, _ = await ran(gang, "sh", "-c", told)
    assert (status, lines) == (0, [f"[{rank}] few" for rank in range(4)])
    assert not list(attempts.glob("*/step-*")), "what the copies were to run is taken away"


async def test_lines_of_several_ranks_do_not_mix_and_all_of_them_arrive(gang: SessionLab) -> None:
    count, width = 400, 900
    status, lines, _ = await ran(gang, "sh", "-c", f"seq -f '%0{width}g' {count}; printf end")
    assert status == 0
    numbers = [f"{number:0{width}d}" for number in range(1, count + 1)]
    assert lines == sorted(f"[{rank}] {text}" for rank in range(4) for text in [*numbers, "end"])


async def test_output_comes_while_it_runs_and_an_interrupt_ends_every_copy(gang: SessionLab) -> None:
    process = await begun(gang, "sh", "-c", "echo began; exec sleep 987")
    assert process.stdout is not None
    heard = {await asyncio.wait_for(process.stdout.readline(), 30) for _ in range(4)}
    assert heard == {f"[{rank}] began\n".encode() for rank in range(4)}
    assert len(sleepers()) == 4
    process.send_signal(signal.SIGINT)
    await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 128 + signal.SIGTERM
    assert not sleepers()


async def test_a_program_inside_asks_for_every_rank_as_well(gang: SessionLab) -> None:
    asked = "import subprocess; d = subprocess.run({!r}, capture_output=True, text=True)"
    words = ["openai4s", "run", "--ranks", "all", "--", "sh", "-c", "echo $OPENAI4S_RANK; exit 5"]
    reply = await gang.run(asked.format(words))
    assert reply["status"] == "ok", json.dumps(reply)
    said = "\n".join(f"copy {rank} exited with 5" for rank in range(4))
    told = f"openai4s: The launcher said: {said}\n"
    found = ast.literal_eval(await gang.value("(d.returncode, sorted(d.stdout.split()), d.stderr)"))
    assert found == (5, sorted([f"[{rank}]" for rank in range(4)] + [str(rank) for rank in range(4)]), told)


async def test_a_task_that_runs_on_every_rank_is_ended_with_its_session(
    offer: Offer, lab: SessionLab, no_process_left: Any
) -> None:
    offer(2)
    await lab.start()
    process = await begun(lab, "sh", "-c", "trap '' TERM; echo began; while :; do sleep 0.1; done")
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.readline(), 30)
    await lab.manager.shutdown_kernel(now=True)
    await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode != 0
    no_process_left()


class BackendOfSingleSteps:
    """Its allocations hold steps, on their first rank only."""

    name = "ranks"

    def check_task(self, profile: ResourceProfile) -> None:
        pass


async def test_where_a_step_cannot_run_on_every_rank_that_is_said(offer: Offer, lab: SessionLab) -> None:
    offer(2)
    await lab.start()
    running, workload = lab.control._running, (await lab.situation()).workload
    assert running is not None
    backends: dict[str, Any] = {"ranks": BackendOfSingleSteps()}
    desk = TaskDesk(lab.control._admitting.config, backends, running.sessions._store)
    with pytest.raises(Refused, match=r"on the first rank only\. Leave out --ranks all"):
        await desk.open(workload.workload_id, workload.owner, ["true"], "/", every_rank=True)
    task = await desk.open(workload.workload_id, workload.owner, ["true"], "/")
    assert not task.every_rank


async def test_one_rank_is_every_rank_of_a_session_on_one_machine(lab: SessionLab) -> None:
    await lab.start()
    status, lines, _ = await ran(lab, "sh", "-c", "echo $OPENAI4S_RANK of $OPENAI4S_RANKS; exit 4")
    assert (status, lines) == (4, ["0 of 1"])


def sleepers() -> list[int]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            ours = process.environ().get("OPENAI4S_RANK") is not None and process.pid != os.getpid()
            if ours and process.cmdline() == ["sleep", "987"]:
                found.append(process.pid)
    return found
