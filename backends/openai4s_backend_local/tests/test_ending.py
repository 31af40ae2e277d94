"""However an allocation ends, nothing of it is left, and what is reported is what happened."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from openai4s_backend_local import process_tree, shim
from openai4s_backend_local.process_tree import Life, Standing
from openai4s_backend_local.receipts import Receipts, Started
from openai4s_provisioner.orchestration.errors import CouldNotAsk
from openai4s_provisioner.orchestration.models import ExternalHandle
from openai4s_provisioner.orchestration.ports import (
    AllocationBackend,
    AllocationRequest,
    Observed,
    Unknown,
)
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.testing.backend_contract import with_backend
from openai4s_provisioner.testing.backend_lab import BackendLab, handle_of

from .bench import abandoned_claim, run_shim


def shim_of(lab: BackendLab, request: AllocationRequest) -> shim.Process:
    receipt = Receipts(lab.state_dir / "receipts").read(request.token)
    assert receipt is not None
    assert receipt.started is not None
    process = shim.read_process(receipt.started.pid)
    assert process is not None
    assert process.start_time == receipt.started.start_time
    return process


async def kill_shim(lab: BackendLab, request: AllocationRequest) -> None:
    process = shim_of(lab, request)
    shim.send_signal(process, signal.SIGKILL)

    def is_gone() -> bool:
        now = shim.read_process(process.pid)
        return now is None or not now.is_alive

    await lab.until(is_gone, "the shim to be gone")


def rewrite_started(lab: BackendLab, request: AllocationRequest, **changes: object) -> None:
    path = lab.state_dir / "receipts" / request.token / shim.STARTED
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_survivors_of_a_killed_shim_keep_it_active_and_cancel_ends_them(backend_lab: BackendLab) -> None:
    async def scenario(backend: AllocationBackend) -> None:
        request = backend_lab.request("family")
        handle = await backend_lab.submitted(backend, request, processes=2)
        await kill_shim(backend_lab, request)
        assert len(backend_lab.alive(request)) == 2
        assert (await backend.observe([handle]))[handle].state is Observed.RUNNING
        await backend.acknowledge_terminal(handle)  # type: ignore[attr-defined]
        await backend.cancel(handle)
        over = await backend_lab.ended(backend, handle)
        assert over.state is Observed.CANCELLED
        assert not backend_lab.alive(request)
        await backend.acknowledge_terminal(handle)  # type: ignore[attr-defined]
        assert (await backend.observe([handle]))[handle].state is Observed.GONE

    with_backend(backend_lab, scenario)


def test_a_killed_shim_counts_against_the_limit_while_its_processes_live(backend_lab: BackendLab) -> None:
    lab = dataclasses.replace(backend_lab, options={"max_concurrent": 1, "kill_after_s": 0.5})

    async def scenario(backend: AllocationBackend) -> None:
        request = lab.request()
        await lab.submitted(backend, request)
        await kill_shim(lab, request)
        refused = await backend.submit(lab.request())
        assert getattr(refused, "reason", None) is Reason.QUOTA_EXCEEDED
        lab.let_exit(request)
        await lab.until(lambda: not lab.alive(request), "the worker to end")
        handle_of(await backend.submit(lab.request()))

    with_backend(lab, scenario)


def test_a_killed_shim_without_survivors_is_a_lost_worker_and_never_completed(backend_lab: BackendLab) -> None:
    async def scenario(backend: AllocationBackend) -> None:
        request = backend_lab.request()
        handle = await backend_lab.submitted(backend, request)
        await kill_shim(backend_lab, request)
        backend_lab.let_exit(request)  # with 0, but nobody saw it
        over = await backend_lab.ended(backend, handle)
        assert (over.state, over.reason, over.exit_code) == (Observed.FAILED, Reason.WORKER_LOST, None)

    with_backend(backend_lab, scenario)


def test_an_exit_that_the_shim_saw_before_it_was_killed_still_counts(backend_lab: BackendLab) -> None:
    async def scenario(backend: AllocationBackend) -> None:
        request = backend_lab.request("orphan")
        handle = await backend_lab.submitted(backend, request, processes=2)
        seen = backend_lab.state_dir / "receipts" / request.token / shim.WORKER
        await backend_lab.until(seen.exists, "the worker's exit to be written")
        assert (await backend.observe([handle]))[handle].state is Observed.RUNNING
        await kill_shim(backend_lab, request)
        assert (await backend.observe([handle]))[handle].state is Observed.RUNNING
        backend_lab.let_exit(request)
        over = await backend_lab.ended(backend, handle)
        assert (over.state, over.exit_code) == (Observed.COMPLETED, 0)

    with_backend(backend_lab, scenario)


def test_a_survivor_without_the_marker_is_found_by_its_session(backend_lab: BackendLab, tmp_path: Path) -> None:
    program = tmp_path / "forgets.py"
    program.write_text("import os, sys\nos.execve(sys.executable, [sys.executable, *sys.argv[1:]], {})\n")

    async def scenario(backend: AllocationBackend) -> None:
        plain = backend_lab.request()
        request = dataclasses.replace(plain, program=(str(program), *plain.program))
        handle = await backend_lab.submitted(backend, request)
        assert shim.MARKER not in backend_lab.environment(request)
        await kill_shim(backend_lab, request)
        assert (await backend.observe([handle]))[handle].state is Observed.RUNNING
        await backend.cancel(handle)
        assert (await backend_lab.ended(backend, handle)).state is Observed.CANCELLED
        assert not backend_lab.alive(request)

    with_backend(backend_lab, scenario)


def test_a_survivor_that_forbids_to_be_read_is_found(backend_lab: BackendLab, tmp_path: Path) -> None:
    """As the worker does. An ordinary user then sees root as the owner of its entry in /proc."""
    program = tmp_path / "private.py"
    program.write_text(
        "import ctypes, runpy, sys\n"
        "ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )

    async def scenario(backend: AllocationBackend) -> None:
        plain = backend_lab.request()
        request = dataclasses.replace(plain, program=(str(program), *plain.program))
        handle = await backend_lab.submitted(backend, request)
        await kill_shim(backend_lab, request)
        assert (await backend.observe([handle]))[handle].state is Observed.RUNNING
        await backend.cancel(handle)
        assert (await backend_lab.ended(backend, handle)).state is Observed.CANCELLED
        assert not backend_lab.alive(request)

    with_backend(backend_lab, scenario)


def test_an_end_that_is_written_between_two_looks_is_seen(
    backend_lab: BackendLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shim writes the end and leaves after its receipt was read and before its process is looked for."""
    request = backend_lab.request()
    real = process_tree.standings

    def slow_standings(receipts: Sequence[Started]) -> dict[Started, Standing]:
        backend_lab.let_exit(request)
        deadline = time.monotonic() + backend_lab.patience_s
        while (answer := real(receipts))[receipts[0]].life is not Life.NOTHING:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return answer

    async def scenario(backend: AllocationBackend) -> None:
        handle = await backend_lab.submitted(backend, request)
        monkeypatch.setattr("openai4s_backend_local.backend.standings", slow_standings)
        assert (await backend.observe([handle]))[handle].state is Observed.COMPLETED

    with_backend(backend_lab, scenario)


def test_nothing_that_bears_the_marker_is_left_after_an_end(backend_lab: BackendLab) -> None:
    async def scenario(backend: AllocationBackend) -> None:
        requests = [backend_lab.request(behaviour) for behaviour in ("wait", "stubborn", "family", "orphan")]
        handles = [await backend_lab.submitted(backend, request) for request in requests]
        assert {request.allocation_id for request in requests} <= marked_allocations()
        for handle in handles:
            await backend.cancel(handle)
        for handle in handles:
            assert (await backend_lab.ended(backend, handle)).state is Observed.CANCELLED
        ours = {request.allocation_id for request in requests}
        await backend_lab.until(lambda: not ours & marked_allocations(), "the shims to be gone too")

    with_backend(backend_lab, scenario)


def marked_allocations() -> set[str]:
    """The marker of every process that lives on this machine and can be read."""
    found = set()
    for process in shim.all_processes():
        try:
            environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if process.is_alive:
            found |= {v.partition(b"=")[2].decode() for v in environment if v.startswith(shim.MARKER.encode() + b"=")}
    return found


def test_sigterm_from_outside_is_a_stop_from_outside(backend_lab: BackendLab) -> None:
    async def scenario(backend: AllocationBackend) -> None:
        request = backend_lab.request("family")
        handle = await backend_lab.submitted(backend, request, processes=2)
        shim.send_signal(shim_of(backend_lab, request), signal.SIGTERM)
        over = await backend_lab.ended(backend, handle)
        assert (over.state, over.reason) == (Observed.CANCELLED, Reason.ADMIN_CANCELLED)
        assert not backend_lab.alive(request)

    with_backend(backend_lab, scenario)


def test_a_stopped_shim_and_a_stopped_worker_can_be_cancelled(backend_lab: BackendLab) -> None:
    async def scenario(backend: AllocationBackend) -> None:
        request = backend_lab.request()
        handle = await backend_lab.submitted(backend, request)
        os.kill(backend_lab.started(request)[0], signal.SIGSTOP)
        shim.send_signal(shim_of(backend_lab, request), signal.SIGSTOP)
        await backend.cancel(handle)
        assert (await backend_lab.ended(backend, handle)).state is Observed.CANCELLED

    with_backend(backend_lab, scenario)


def test_a_worker_that_cannot_be_started_is_said(backend_lab: BackendLab, tmp_path: Path) -> None:
    receipts = Receipts(backend_lab.state_dir / "receipts")
    (receipts.folder / "token").mkdir(parents=True)
    lock = os.open(os.devnull, os.O_RDONLY)
    command = [
        *(sys.executable, "-I", "-S", shim.__file__, "--folder", str(receipts.folder / "token"), "--lock", str(lock)),
        *("--grace-s", "1", "--time-limit-s", "0", "--", str(tmp_path / "no-such-program")),
    ]
    done = subprocess.run(command, pass_fds=(lock,), env={shim.MARKER: "x"}, timeout=20, check=False)
    os.close(lock)
    assert done.returncode == shim.LAUNCHED

    async def scenario(backend: AllocationBackend) -> None:
        over = await backend_lab.ended(backend, ExternalHandle("local", "token"))
        assert (over.state, over.reason) == (Observed.FAILED, Reason.BOOTSTRAP_FAILED)
        assert "No such file" in over.backend_detail

    with_backend(backend_lab, scenario)


def test_a_cancel_that_comes_before_the_shim_published_starts_no_worker(backend_lab: BackendLab) -> None:
    request = backend_lab.request()
    receipts = abandoned_claim(backend_lab, request)
    lock = receipts.take_launch_lock(request.token)
    assert lock is not None
    handle = ExternalHandle("local", request.token)

    async def scenario(backend: AllocationBackend) -> None:
        assert (await backend.observe([handle]))[handle].state is Observed.PENDING
        await backend.cancel(handle)
        assert run_shim(receipts, request, lock) == shim.LAUNCHED
        assert (await backend_lab.ended(backend, handle)).state is Observed.CANCELLED
        assert not backend_lab.started(request)

    with_backend(backend_lab, scenario)
    os.close(lock)


def test_an_earlier_boot_is_gone_and_another_host_cannot_be_asked(backend_lab: BackendLab) -> None:
    async def scenario(backend: AllocationBackend) -> None:
        request = backend_lab.request()
        handle = await backend_lab.submitted(backend, request)
        backend_lab.let_exit(request)
        await backend_lab.ended(backend, handle)
        (backend_lab.state_dir / "receipts" / request.token / shim.ENDED).unlink()

        rewrite_started(backend_lab, request, boot_id="elsewhere", host="another-host")
        assert (await backend.observe([handle]))[handle].state is Observed.UNKNOWN
        with pytest.raises(CouldNotAsk, match="another-host"):
            await backend.cancel(handle)
        await backend.acknowledge_terminal(handle)  # type: ignore[attr-defined]
        assert await backend.find_by_token(request.token) == handle

        rewrite_started(backend_lab, request, boot_id="earlier", host=platform.node())
        assert (await backend.observe([handle]))[handle].state is Observed.GONE
        await backend.cancel(handle)
        await backend.acknowledge_terminal(handle)  # type: ignore[attr-defined]
        assert await backend.find_by_token(request.token) is None

    with_backend(backend_lab, scenario)


def test_a_stranger_with_the_shims_pid_is_neither_taken_for_it_nor_touched(backend_lab: BackendLab) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
    try:

        async def scenario(backend: AllocationBackend) -> None:
            request = backend_lab.request()
            handle = await backend_lab.submitted(backend, request)
            await kill_shim(backend_lab, request)
            backend_lab.let_exit(request)
            await backend_lab.until(lambda: not backend_lab.alive(request), "the worker to end")
            rewrite_started(backend_lab, request, pid=stranger.pid)
            assert (await backend.observe([handle]))[handle].state is Observed.FAILED
            await backend.cancel(handle)
            with pytest.raises(subprocess.TimeoutExpired):
                stranger.wait(0.2)

        with_backend(backend_lab, scenario)
    finally:
        stranger.kill()
        stranger.wait()


def test_an_unreadable_receipt_is_unknown_and_spoils_no_other_answer(backend_lab: BackendLab) -> None:
    async def scenario(backend: AllocationBackend) -> None:
        bad, good = backend_lab.request(), backend_lab.request()
        handle = await backend_lab.submitted(backend, bad)
        other = await backend_lab.submitted(backend, good)
        path = backend_lab.state_dir / "receipts" / bad.token / shim.STARTED
        whole = path.read_text()
        for text in ("", "{", "[]", '{"pid": 1}'):
            path.write_text(text)
            answers = await backend.observe([handle, other])
            assert answers[handle].state is Observed.UNKNOWN
            assert answers[other].state is Observed.RUNNING
            with pytest.raises(CouldNotAsk):
                await backend.find_by_token(bad.token)
            with pytest.raises(CouldNotAsk):
                await backend.cancel(handle)
            assert isinstance(await backend.submit(bad), Unknown)
        path.write_text(whole)
        assert (await backend.observe([handle]))[handle].state is Observed.RUNNING

    with_backend(backend_lab, scenario)


def test_the_log_shows_what_the_worker_said(backend_lab: BackendLab) -> None:
    async def scenario(backend: AllocationBackend) -> None:
        plain = backend_lab.request()
        program = plain.attempt_dir / "loud.py"
        program.write_text("import sys\nsys.exit('the credential file is missing')\n")
        (plain.attempt_dir / "worker-0.log").write_text("dialled unix:/somewhere\n")
        request = dataclasses.replace(plain, program=(str(program),))
        handle = handle_of(await backend.submit(request))
        await backend_lab.ended(backend, handle)
        diagnostics = await backend.diagnostics(handle)
        assert "the credential file is missing" in diagnostics.log_tail
        assert "dialled unix:/somewhere" in diagnostics.log_tail
        assert plain.attempt_dir / "worker-0.log" in diagnostics.log_paths

    with_backend(backend_lab, scenario)
