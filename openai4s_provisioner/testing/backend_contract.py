"""The contract that every backend keeps, as a test suite it inherits with one fixture.

    class TestMyBackend(BackendContract):
        @pytest.fixture
        def backend_lab(self, tmp_path): ...   # yields a BackendLab, then calls its end_everything()

Each test runs real allocations of a tiny program. It says nothing about how a backend works inside, nor about what
only one backend promises: that stands in the backend's own tests.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable

import pytest

from openai4s_provisioner.orchestration.errors import ConfigError
from openai4s_provisioner.orchestration.models import ExternalHandle
from openai4s_provisioner.orchestration.ports import (
    AllocationBackend,
    Created,
    Existing,
    Observed,
    Rejected,
    TerminalAllocationAcknowledger,
)

from .backend_lab import BackendLab, handle_of

_ACTIVE = frozenset({Observed.PENDING, Observed.RUNNING, Observed.PAUSED, Observed.ENDING})
_LONGEST_STALL_S = 1.0  # of the caller's loop, on a busy machine


def with_backend(lab: BackendLab, scenario: Callable[[AllocationBackend], Awaitable[None]]) -> None:
    """Run a scenario against a freshly opened backend, as one life of the server."""

    async def life() -> None:
        backend = lab.open_backend()
        try:
            await scenario(backend)
        finally:
            await backend.close()

    asyncio.run(life())


class BackendContract:
    """Inherit it, name the class Test..., and define the fixture `backend_lab`."""

    # Submission (INV-8)

    def test_a_program_that_exits_zero_is_running_and_then_completed(self, backend_lab: BackendLab) -> None:
        async def scenario(backend: AllocationBackend) -> None:
            request = backend_lab.request()
            answer = await backend.submit(request)
            assert isinstance(answer, Created), answer
            handle = answer.handle
            assert handle.backend == backend.name
            await backend_lab.until(lambda: len(backend_lab.started(request)) == 1, "the program to start")
            assert (await backend.observe([handle]))[handle].state is Observed.RUNNING
            backend_lab.let_exit(request)
            over = await backend_lab.ended(backend, handle)
            assert over.state is Observed.COMPLETED, over

        with_backend(backend_lab, scenario)

    def test_a_token_submitted_twice_is_one_allocation(self, backend_lab: BackendLab) -> None:
        async def scenario(backend: AllocationBackend) -> None:
            request = backend_lab.request()
            handle = await backend_lab.submitted(backend, request)
            again = await backend.submit(request)
            assert again == Existing(handle)
            both = await asyncio.gather(backend.submit(request), backend.submit(request))
            assert list(both) == [Existing(handle)] * 2
            await self._ends_with_one_process(backend_lab, backend, request.token, handle)
            assert len(backend_lab.started(request)) == 1

        with_backend(backend_lab, scenario)

    def test_a_token_submitted_again_after_its_end_runs_nothing_anew(self, backend_lab: BackendLab) -> None:
        async def scenario(backend: AllocationBackend) -> None:
            request = backend_lab.request()
            handle = await backend_lab.submitted(backend, request)
            backend_lab.let_exit(request)
            await backend_lab.ended(backend, handle)
            assert await backend.submit(request) == Existing(handle)
            assert len(backend_lab.started(request)) == 1

        with_backend(backend_lab, scenario)

    def test_processes_that_race_with_one_token_get_one_allocation(self, backend_lab: BackendLab) -> None:
        request = backend_lab.request()
        begin = request.attempt_dir / "begin"
        racers = [backend_lab.submitter(request, begin) for _ in range(3)]
        self._wait_until_ready(backend_lab, request.attempt_dir, len(racers))
        begin.touch()
        answers = [racer.communicate(timeout=backend_lab.patience_s)[0].strip() for racer in racers]

        async def scenario(backend: AllocationBackend) -> None:
            handle = await backend_lab.found(backend, request.token)
            assert handle is not None, answers
            await backend_lab.until(lambda: bool(backend_lab.started(request)), "the program to start")
            await self._ends_with_one_process(backend_lab, backend, request.token, handle)
            assert len(backend_lab.started(request)) == 1, answers

        with_backend(backend_lab, scenario)
        assert answers.count("Created") <= 1, answers
        assert set(answers) <= {"Created", "Existing", "Unknown"}, answers

    @pytest.mark.parametrize("delay_s", [0.0, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08])
    def test_a_submitter_killed_at_any_moment_leaves_one_allocation_or_none(
        self, backend_lab: BackendLab, delay_s: float
    ) -> None:
        request = backend_lab.request()
        begin = request.attempt_dir / "begin"
        victim = backend_lab.submitter(request, begin)
        self._wait_until_ready(backend_lab, request.attempt_dir, 1)
        begin.touch()
        time.sleep(delay_s)  # the moment of the crash, not a synchronisation
        victim.send_signal(signal.SIGKILL)
        victim.communicate()

        async def scenario(backend: AllocationBackend) -> None:
            handle = await backend_lab.found(backend, request.token)
            if handle is None:
                assert not backend_lab.started(request), "found nothing, and yet it ran"
            again = await backend.submit(request)
            assert isinstance(again, Existing if handle else Created), (handle, again)
            await backend_lab.until(lambda: bool(backend_lab.started(request)), "the program to start")
            await self._ends_with_one_process(backend_lab, backend, request.token, handle_of(again))
            assert len(backend_lab.started(request)) == 1

        with_backend(backend_lab, scenario)

    def test_a_refused_request_leaves_nothing(self, backend_lab: BackendLab) -> None:
        async def scenario(backend: AllocationBackend) -> None:
            request = backend_lab.request(profile=backend_lab.refused_profile)
            answer = await backend.submit(request)
            assert isinstance(answer, Rejected), answer
            assert answer.sentence
            assert await backend.find_by_token(request.token) is None
            assert not backend_lab.started(request)

        with_backend(backend_lab, scenario)

    def test_a_profile_it_cannot_serve_is_refused_by_name(self, backend_lab: BackendLab) -> None:
        backend = backend_lab.open_backend()
        backend.check_profile(backend_lab.profile)
        with pytest.raises(ConfigError, match=re.escape(backend_lab.refused_profile.name)):
            backend.check_profile(backend_lab.refused_profile)

    def test_no_secret_of_the_server_reaches_the_allocation(
        self, backend_lab: BackendLab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("JUPYTER_TOKEN", "JUPYTERHUB_API_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"):
            monkeypatch.setenv(name, "hush-4711")

        async def scenario(backend: AllocationBackend) -> None:
            request = backend_lab.request()
            await backend_lab.submitted(backend, request)
            assert "hush-4711" not in str(backend_lab.environment(request))

        with_backend(backend_lab, scenario)

    # Finding again

    def test_a_restarted_server_finds_its_allocation_by_token(self, backend_lab: BackendLab) -> None:
        request = backend_lab.request()
        handles = []

        async def first_life(backend: AllocationBackend) -> None:
            handles.append(await backend_lab.submitted(backend, request))

        async def second_life(backend: AllocationBackend) -> None:
            handle = await backend.find_by_token(request.token)
            assert handle is not None
            assert [handle] == handles
            assert (await backend.observe([handle]))[handle].state is Observed.RUNNING
            await backend.cancel(handle)
            await backend_lab.ended(backend, handle)
            assert not backend_lab.alive(request)

        with_backend(backend_lab, first_life)
        assert backend_lab.alive(request), "it ended with the server"
        with_backend(backend_lab, second_life)

    def test_a_token_of_nothing_is_found_nowhere(self, backend_lab: BackendLab) -> None:
        async def scenario(backend: AllocationBackend) -> None:
            assert await backend.find_by_token(backend_lab.request().token) is None

        with_backend(backend_lab, scenario)

    # Observation

    def test_every_handle_asked_for_is_answered_and_a_stranger_is_gone(self, backend_lab: BackendLab) -> None:
        async def scenario(backend: AllocationBackend) -> None:
            good = await backend_lab.submitted(backend, backend_lab.request())
            absent = ExternalHandle(backend.name, backend_lab.absent_handle)
            odd = [ExternalHandle(backend.name, text) for text in ("", "../..", "a b\n;", "\0", "x" * 5000)]
            answers = await backend.observe([absent, good, *odd])
            assert set(answers) == {absent, good, *odd}
            assert answers[good].state is Observed.RUNNING
            assert answers[absent].state is Observed.GONE
            assert {answers[handle].state for handle in odd} <= {Observed.GONE, Observed.UNKNOWN}
            assert await backend.observe([]) == {}

        with_backend(backend_lab, scenario)

    def test_a_program_that_fails_is_failed_with_a_reason_and_its_exit_code(self, backend_lab: BackendLab) -> None:
        async def scenario(backend: AllocationBackend) -> None:
            request = backend_lab.request()
            handle = await backend_lab.submitted(backend, request)
            backend_lab.let_exit(request, 3)
            over = await backend_lab.ended(backend, handle)
            assert (over.state, over.exit_code) == (Observed.FAILED, 3), over
            assert over.reason is not None

        with_backend(backend_lab, scenario)

    def test_a_killed_program_is_failed_and_never_completed(self, backend_lab: BackendLab) -> None:
        async def scenario(backend: AllocationBackend) -> None:
            request = backend_lab.request()
            handle = await backend_lab.submitted(backend, request)
            os.kill(backend_lab.started(request)[0], signal.SIGKILL)
            over = await backend_lab.ended(backend, handle)
            assert over.state is Observed.FAILED, over
            assert over.reason is not None

        with_backend(backend_lab, scenario)

    def test_it_is_not_over_while_a_descendant_lives(self, backend_lab: BackendLab) -> None:
        async def scenario(backend: AllocationBackend) -> None:
            request = backend_lab.request("orphan")
            handle = await backend_lab.submitted(backend, request, processes=2)
            for _ in range(10):
                alive_before = backend_lab.alive(request)
                state = (await backend.observe([handle]))[handle].state
                assert state in _ACTIVE or not backend_lab.alive(request), (state, alive_before)
                await asyncio.sleep(0.05)  # gives a wrong "over" the time to appear
            backend_lab.let_exit(request)
            await backend_lab.ended(backend, handle)
            assert not backend_lab.alive(request)

        with_backend(backend_lab, scenario)

    # Ending

    def test_cancel_ends_the_whole_tree(self, backend_lab: BackendLab) -> None:
        async def scenario(backend: AllocationBackend) -> None:
            request = backend_lab.request("family")
            handle = await backend_lab.submitted(backend, request, processes=2)
            assert len(backend_lab.alive(request)) == 2
            await backend.cancel(handle)
            over = await backend_lab.ended(backend, handle)
            assert over.state is Observed.CANCELLED, over
            assert not backend_lab.alive(request)

        with_backend(backend_lab, scenario)

    def test_cancel_ends_a_program_that_ignores_the_request(self, backend_lab: BackendLab) -> None:
        async def scenario(backend: AllocationBackend) -> None:
            request = backend_lab.request("stubborn")
            handle = await backend_lab.submitted(backend, request)
            await backend.cancel(handle)
            over = await backend_lab.ended(backend, handle)
            assert over.state is Observed.CANCELLED, over
            assert not backend_lab.alive(request)

        with_backend(backend_lab, scenario)

    def test_cancel_may_be_repeated_and_may_come_too_late(self, backend_lab: BackendLab) -> None:
        async def scenario(backend: AllocationBackend) -> None:
            request = backend_lab.request()
            handle = await backend_lab.submitted(backend, request)
            await asyncio.gather(backend.cancel(handle), backend.cancel(handle))
            await backend.cancel(handle)
            cancelled = await backend_lab.ended(backend, handle)
            await backend.cancel(handle)
            assert (await backend.observe([handle]))[handle] == cancelled
            await backend.cancel(ExternalHandle(backend.name, backend_lab.absent_handle))

        with_backend(backend_lab, scenario)

    def test_cancelling_what_has_completed_does_not_rewrite_how_it_ended(self, backend_lab: BackendLab) -> None:
        async def scenario(backend: AllocationBackend) -> None:
            request = backend_lab.request()
            handle = await backend_lab.submitted(backend, request)
            backend_lab.let_exit(request)
            completed = await backend_lab.ended(backend, handle)
            await backend.cancel(handle)
            assert (await backend.observe([handle]))[handle] == completed

        with_backend(backend_lab, scenario)

    def test_cancelling_one_leaves_the_other_alone(self, backend_lab: BackendLab) -> None:
        async def scenario(backend: AllocationBackend) -> None:
            one, other = backend_lab.request(), backend_lab.request()
            handle = await backend_lab.submitted(backend, one)
            kept = await backend_lab.submitted(backend, other)
            await backend.cancel(handle)
            await backend_lab.ended(backend, handle)
            assert backend_lab.alive(other)
            assert (await backend.observe([kept]))[kept].state is Observed.RUNNING

        with_backend(backend_lab, scenario)

    # Manners

    def test_nothing_blocks_the_callers_loop(self, backend_lab: BackendLab) -> None:
        async def scenario(backend: AllocationBackend) -> None:
            stalls: list[float] = []
            watch = asyncio.create_task(_record_stalls(stalls))
            request = backend_lab.request("stubborn")
            handle = await backend_lab.submitted(backend, request)
            await backend.find_by_token(request.token)
            await backend.diagnostics(handle)
            await backend.cancel(handle)
            await backend_lab.ended(backend, handle)
            await asyncio.sleep(0.05)  # lets the watch see a stall that has only just ended
            watch.cancel()
            assert max(stalls) < _LONGEST_STALL_S

        with_backend(backend_lab, scenario)

    def test_diagnostics_answer_for_any_handle(self, backend_lab: BackendLab) -> None:
        async def scenario(backend: AllocationBackend) -> None:
            handle = await backend_lab.submitted(backend, backend_lab.request())
            for any_handle in (handle, ExternalHandle(backend.name, backend_lab.absent_handle)):
                diagnostics = await backend.diagnostics(any_handle)
                assert isinstance(diagnostics.log_tail, str)

        with_backend(backend_lab, scenario)

    def test_an_acknowledgement_forgets_only_what_is_over(self, backend_lab: BackendLab) -> None:
        """For backends that keep receipts; the others have nothing to forget."""

        async def scenario(backend: AllocationBackend) -> None:
            if not isinstance(backend, TerminalAllocationAcknowledger):
                return
            request = backend_lab.request()
            handle = await backend_lab.submitted(backend, request)
            await backend.acknowledge_terminal(handle)
            assert (await backend.observe([handle]))[handle].state is Observed.RUNNING
            backend_lab.let_exit(request)
            assert (await backend_lab.ended(backend, handle)).state is Observed.COMPLETED
            assert await backend.find_by_token(request.token) == handle
            await backend.acknowledge_terminal(handle)
            await backend.acknowledge_terminal(handle)
            assert await backend.find_by_token(request.token) is None
            assert (await backend.observe([handle]))[handle].state is Observed.GONE

        with_backend(backend_lab, scenario)

    async def _ends_with_one_process(
        self, lab: BackendLab, backend: AllocationBackend, token: str, handle: ExternalHandle
    ) -> None:
        """The token leads to this allocation, and ending it leaves nothing: there is no second one."""
        assert await lab.found(backend, token) == handle
        await backend.cancel(handle)
        await lab.ended(backend, handle)

    @staticmethod
    def _wait_until_ready(lab: BackendLab, attempt_dir: os.PathLike[str], count: int) -> None:
        deadline = time.monotonic() + lab.patience_s
        while sum(name.startswith("ready-") for name in os.listdir(attempt_dir)) < count:
            assert time.monotonic() < deadline, "a submitting process did not start"
            time.sleep(0.01)


async def _record_stalls(stalls: list[float]) -> None:
    while True:
        before = time.monotonic()
        await asyncio.sleep(0.01)
        stalls.append(time.monotonic() - before - 0.01)
