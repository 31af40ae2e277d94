"""A token is launched at most once, and what became of a launch is never guessed (INV-8)."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from openai4s_backend_local import launch, shim
from openai4s_backend_local.receipts import Receipts
from openai4s_provisioner.orchestration.errors import CouldNotAsk
from openai4s_provisioner.orchestration.models import ExternalHandle
from openai4s_provisioner.orchestration.ports import (
    AllocationBackend,
    Created,
    Existing,
    Observed,
    Rejected,
    Unknown,
)
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.testing.backend_contract import with_backend
from openai4s_provisioner.testing.backend_lab import BackendLab, handle_of

from .bench import abandoned_claim, receipts_of, run_shim

_REPORT = """
import json, os, sys
report = dict(
    argv=sys.argv, isolated=sys.flags.isolated, environment=dict(os.environ), cwd=os.getcwd(), session=os.getsid(0),
    group=os.getpgid(0), leader=os.getppid(), umask=os.umask(0), stdin=os.readlink("/proc/self/fd/0"),
    files=sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and
                 os.path.exists(f"/proc/self/fd/{fd}")),
    blocked=open("/proc/self/status").read().split("SigBlk:")[1].split()[0],
)
open(sys.argv[1], "w").write(json.dumps(report))
"""


def test_loading_asking_and_closing_touch_no_file_and_start_no_thread(backend_lab: BackendLab) -> None:
    threads = threading.active_count()
    backend = backend_lab.open_backend()
    assert threading.active_count() == threads
    asyncio.run(backend.close())

    async def scenario(backend: AllocationBackend) -> None:
        assert await backend.find_by_token("nothing") is None
        assert await backend.observe([]) == {}

    with_backend(backend_lab, scenario)
    assert not backend_lab.state_dir.exists()


def test_the_worker_gets_a_small_environment_and_a_session_of_its_own(
    backend_lab: BackendLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_TIME", "C")
    monkeypatch.setenv("SOME_SETTING", "of the server")
    report_path = tmp_path / "report"
    program = tmp_path / "report.py"
    program.write_text(_REPORT)
    request = dataclasses.replace(backend_lab.request(), program=(str(program), str(report_path)))

    async def scenario(backend: AllocationBackend) -> None:
        handle = handle_of(await backend.submit(request))
        assert (await backend_lab.ended(backend, handle)).state is Observed.COMPLETED

    with_backend(backend_lab, scenario)
    report = json.loads(report_path.read_text())
    inherited = {name for name in launch._INHERITED if name in os.environ}
    assert set(report["environment"]) - {"LC_CTYPE"} == inherited | {"LC_TIME", shim.MARKER}
    assert report["environment"][shim.MARKER] == request.allocation_id
    assert report["argv"][1:] == [str(report_path), "--rank", "0"]
    assert report["isolated"] == 1
    assert (report["cwd"], report["stdin"], report["files"]) == ("/", os.devnull, [])
    assert report["session"] == report["group"] == report["leader"] != os.getsid(0)
    assert int(report["blocked"], 16) == 0
    umask = os.umask(0o077)
    os.umask(umask)
    assert report["umask"] == umask


def test_a_claim_is_durable_before_anything_is_started(
    backend_lab: BackendLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = backend_lab.request()
    seen: list[str] = []

    def crash(*_: object, **__: object) -> None:
        seen.extend(os.listdir(backend_lab.state_dir / "receipts" / request.token))
        raise KeyboardInterrupt  # the server dies here

    monkeypatch.setattr(subprocess, "run", crash)
    backend = backend_lab.open_backend()
    with pytest.raises(KeyboardInterrupt):
        backend._launcher.launch(request)  # type: ignore[attr-defined]
    assert "claim" in seen
    monkeypatch.undo()

    async def scenario(backend: AllocationBackend) -> None:
        assert await backend.find_by_token(request.token) is None
        assert isinstance(await backend.submit(request), Created)

    with_backend(backend_lab, scenario)


def test_an_abandoned_claim_is_nothing_and_can_be_submitted_again(backend_lab: BackendLab) -> None:
    request = backend_lab.request()
    abandoned_claim(backend_lab, request)

    async def scenario(backend: AllocationBackend) -> None:
        answer = await backend.submit(request)
        assert isinstance(answer, Created)
        await backend_lab.until(lambda: bool(backend_lab.started(request)), "the program to start")

    with_backend(backend_lab, scenario)


def test_found_nowhere_is_a_promise_that_a_late_shim_cannot_break(backend_lab: BackendLab) -> None:
    request = backend_lab.request()
    receipts = abandoned_claim(backend_lab, request)
    lock = receipts.take_launch_lock(request.token)
    assert lock is not None
    stray = os.open(os.devnull, os.O_RDONLY)
    os.close(lock)

    async def scenario(backend: AllocationBackend) -> None:
        assert await backend.find_by_token(request.token) is None

    with_backend(backend_lab, scenario)
    assert receipts.tokens() == []
    assert run_shim(receipts, request, stray) == shim.LAUNCH_FAILED
    os.close(stray)
    assert not backend_lab.started(request)


def test_a_second_shim_of_a_token_leaves_at_once(backend_lab: BackendLab) -> None:
    request = backend_lab.request()
    receipts = abandoned_claim(backend_lab, request)
    codes, copies = [], []
    for _ in range(2):
        lock = receipts.take_launch_lock(request.token)
        assert lock is not None, "a shim that has published gives the lock up, whoever has a copy of it"
        copies.append(lock)
        codes.append(run_shim(receipts, request, lock))
    for lock in copies:
        os.close(lock)
    assert codes == [shim.LAUNCHED, shim.ALREADY_LAUNCHED]

    async def scenario(backend: AllocationBackend) -> None:
        handle = await backend.find_by_token(request.token)
        assert handle is not None
        await backend_lab.until(lambda: bool(backend_lab.started(request)), "the program to start")
        await backend.cancel(handle)
        await backend_lab.ended(backend, handle)
        assert len(backend_lab.started(request)) == 1

    with_backend(backend_lab, scenario)


def test_a_launch_under_way_is_neither_there_nor_gone(backend_lab: BackendLab) -> None:
    request = backend_lab.request()
    receipts = abandoned_claim(backend_lab, request)
    lock = receipts.take_launch_lock(request.token)
    assert lock is not None

    async def scenario(backend: AllocationBackend) -> None:
        with pytest.raises(CouldNotAsk):
            await backend.find_by_token(request.token)
        submission = asyncio.create_task(backend.submit(request))
        await asyncio.sleep(0.1)  # it must not start a second one meanwhile
        assert not submission.done()
        assert not backend_lab.started(request)
        os.close(lock)
        assert isinstance(await submission, Created)

    with_backend(backend_lab, scenario)


@pytest.mark.parametrize("question", ["find", "acknowledge", "observe", "submit"])
@pytest.mark.parametrize("method", ["read", "is_launching"])
@pytest.mark.parametrize("moment", range(4))
def test_a_receipt_published_between_any_two_looks_is_not_lost(
    backend_lab: BackendLab, monkeypatch: pytest.MonkeyPatch, question: str, method: str, moment: int
) -> None:
    request = backend_lab.request()
    receipts = abandoned_claim(backend_lab, request)
    lock = receipts.take_launch_lock(request.token)
    assert lock is not None
    handle = ExternalHandle("local", request.token)
    real = getattr(Receipts, method)
    calls = itertools.count()

    def publish_at_that_moment(self: Receipts, token: str) -> object:
        call = 2 * next(calls)
        if call == moment:
            assert run_shim(receipts, request, lock) == shim.LAUNCHED
            os.close(lock)
        answer = real(self, token)
        if call + 1 == moment:
            assert run_shim(receipts, request, lock) == shim.LAUNCHED
            os.close(lock)
        return answer

    async def ask(backend: AllocationBackend) -> None:
        if question == "find":
            with contextlib.suppress(CouldNotAsk):
                assert await backend.find_by_token(request.token) == handle
        elif question == "acknowledge":
            await backend.acknowledge_terminal(handle)  # type: ignore[attr-defined]
        elif question == "observe":
            assert (await backend.observe([handle]))[handle].state in (Observed.PENDING, Observed.RUNNING)
        else:
            backend._launcher._limits = dataclasses.replace(  # type: ignore[attr-defined]
                backend._launcher._limits,  # type: ignore[attr-defined]
                launch_timeout_s=0.3,
                max_concurrent=0,
            )
            assert isinstance(await backend.submit(request), Existing | Unknown)

    async def scenario(backend: AllocationBackend) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Receipts, method, publish_at_that_moment)
            await ask(backend)
        if 2 * next(calls) <= moment:  # this question does not look so often
            os.close(lock)
            return
        assert await backend_lab.found(backend, request.token) == handle
        await backend_lab.until(lambda: bool(backend_lab.started(request)), "the program to start")

    with_backend(backend_lab, scenario)


def test_the_shim_needs_nothing_but_the_standard_library() -> None:
    tree = ast.parse(Path(shim.__file__).read_text(), feature_version=(3, 9))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


def test_what_is_written_is_the_users_alone(backend_lab: BackendLab) -> None:
    async def scenario(backend: AllocationBackend) -> None:
        await backend_lab.submitted(backend, backend_lab.request())
        paths = [backend_lab.state_dir, *backend_lab.state_dir.rglob("*")]
        assert len(paths) > 5
        assert {oct(path.stat().st_mode & 0o077) for path in paths} == {"0o0"}

    with_backend(backend_lab, scenario)


def test_a_shim_that_is_late_is_unknown_first_and_found_later(
    backend_lab: BackendLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    late = tmp_path / "late_shim.py"
    late.write_text(
        "import os, sys, time\n"
        "if os.fork(): time.sleep(60)\n"  # the launcher that gets no answer; the submitter ends it
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
        f"os.execv(sys.executable, [sys.executable, '-I', '-S', {shim.__file__!r}, *sys.argv[1:]])\n"
    )
    request = backend_lab.request()
    real = launch._SHIM
    monkeypatch.setattr(launch, "_SHIM", late)

    async def scenario(backend: AllocationBackend) -> None:
        backend._launcher._limits = dataclasses.replace(  # type: ignore[attr-defined]
            backend._launcher._limits,  # type: ignore[attr-defined]
            launch_timeout_s=0.5,
        )
        answer = await backend.submit(request)
        assert isinstance(answer, Unknown)
        assert answer.token == request.token
        with pytest.raises(CouldNotAsk):
            await backend.find_by_token(request.token)
        monkeypatch.setattr(launch, "_SHIM", real)
        assert isinstance(await backend.submit(request), Unknown), "a launch under way was started again"
        gate.touch()
        handle = await backend_lab.found(backend, request.token)
        assert handle is not None
        assert await backend.submit(request) == Existing(handle)
        await backend_lab.until(lambda: bool(backend_lab.started(request)), "the program to start")
        await backend.cancel(handle)
        await backend_lab.ended(backend, handle)
        assert len(backend_lab.started(request)) == 1

    with_backend(backend_lab, scenario)


def test_a_shim_that_cannot_start_is_a_definite_no_with_its_last_words(
    backend_lab: BackendLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken_shim.py"
    broken.write_text("raise SystemExit('no room on this machine')")
    monkeypatch.setattr(launch, "_SHIM", broken)

    async def scenario(backend: AllocationBackend) -> None:
        request = backend_lab.request()
        answer = await backend.submit(request)
        assert isinstance(answer, Rejected)
        assert answer.reason is Reason.BACKEND_UNAVAILABLE
        assert "no room on this machine" in answer.backend_detail
        assert receipts_of(backend_lab).tokens() == []

    with_backend(backend_lab, scenario)


def test_a_missing_interpreter_is_a_definite_no(backend_lab: BackendLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")

    async def scenario(backend: AllocationBackend) -> None:
        answer = await backend.submit(backend_lab.request())
        assert isinstance(answer, Rejected)
        assert receipts_of(backend_lab).tokens() == []

    with_backend(backend_lab, scenario)


def test_a_state_folder_that_cannot_be_used_is_refused_with_its_path(backend_lab: BackendLab) -> None:
    backend_lab.state_dir.write_text("not a folder")

    async def scenario(backend: AllocationBackend) -> None:
        answer = await backend.submit(backend_lab.request())
        assert isinstance(answer, Rejected)
        assert str(backend_lab.state_dir) in answer.sentence

    with_backend(backend_lab, scenario)


@pytest.mark.parametrize("token", ["", "../escape", "a/b", "a b", ".hidden", "x" * 300])
def test_a_token_that_cannot_name_a_file_is_refused(backend_lab: BackendLab, token: str) -> None:
    async def scenario(backend: AllocationBackend) -> None:
        answer = await backend.submit(dataclasses.replace(backend_lab.request(), token=token))
        assert isinstance(answer, Rejected)
        assert answer.reason is Reason.INVALID_SPEC
        assert await backend.find_by_token(token) is None

    with_backend(backend_lab, scenario)
