"""What is kept of a proof under way: one for each configuration, private, and nothing once it has ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from openai4s_backend_slurm.isolation import Ending
from openai4s_backend_slurm.profiles import SlurmOptions
from openai4s_backend_slurm.proof import JobProver
from openai4s_backend_slurm.proof_tickets import ProofTickets, Ticket
from openai4s_provisioner.orchestration.models import ExternalHandle, ResourceProfile
from openai4s_provisioner.orchestration.ports import AllocationRequest, Created, Observation, Observed, SubmitResult
from openai4s_provisioner.testing.faulty_backends import ManualClock, ObedientBackend


class Bench:
    def __init__(self, base: Path) -> None:
        self.state = base / "state" / "slurm"
        self.exchange = base / "exchange"
        self.exchange.mkdir()
        self.tickets = ProofTickets(self.state, self.exchange)

    def ticket(self, token: str = "one", began: float = 1.0) -> Ticket:
        folder = self.exchange / f"proof-{token}"
        folder.mkdir(exist_ok=True)
        return Ticket(token, str(folder), began, (str(self.exchange),))

    @property
    def file(self) -> Path:
        return self.state / "proof-digest"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_first_one_stays_and_every_process_sees_it(bench: Bench) -> None:
    first = bench.ticket()
    assert bench.tickets.keep("digest", first) == first
    assert ProofTickets(bench.state, bench.exchange).keep("digest", bench.ticket("two")) == first
    assert bench.file.stat().st_mode & 0o777 == 0o600
    known = bench.tickets.landed("digest", first, "17/one")
    assert bench.tickets.of("digest") == known == replace(first, handle="17/one")


def test_one_that_lost_its_folder_is_none_and_makes_way(bench: Bench) -> None:
    first = bench.tickets.keep("digest", bench.ticket())
    Path(first.folder).rmdir()
    assert bench.tickets.of("digest") is None
    second = bench.ticket("two")
    assert bench.tickets.keep("digest", second) == second


def test_nothing_is_left_of_one_that_ended(bench: Bench) -> None:
    first = bench.tickets.keep("digest", bench.ticket())
    bench.tickets.end("digest", first)
    assert not bench.exchange.exists()
    assert not bench.state.parent.exists()
    bench.tickets.landed("digest", first, "17/one")
    assert not bench.state.exists(), "what has ended is not written down again"


def test_the_end_of_one_takes_no_other_s_place_away(bench: Bench) -> None:
    second = bench.tickets.keep("digest", bench.ticket("two"))
    bench.tickets.end("digest", bench.ticket("one"))
    assert bench.tickets.of("digest") == second


@pytest.mark.parametrize(
    "folder", ["/", "/etc", "../proof-x", "{exchange}", "{exchange}/attempt-1", "{exchange}/a/proof-1"]
)
def test_a_folder_that_is_no_proof_s_is_never_believed(bench: Bench, folder: str) -> None:
    """It would be removed."""
    bench.tickets.keep("digest", bench.ticket())
    content = json.loads(bench.file.read_text())
    bench.file.write_text(json.dumps({**content, "folder": folder.format(exchange=bench.exchange)}))
    assert bench.tickets.of("digest") is None


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"token": 1}', "\0"])
def test_what_cannot_be_read_is_none(bench: Bench, content: str) -> None:
    bench.tickets.keep("digest", bench.ticket())
    bench.file.write_text(content)
    assert bench.tickets.of("digest") is None
    assert bench.tickets.older_than(0.0) == []


def test_what_others_could_have_written_is_none(bench: Bench) -> None:
    bench.tickets.keep("digest", bench.ticket())
    bench.file.chmod(0o666)
    assert bench.tickets.of("digest") is None


def test_those_that_nobody_came_back_for_are_told(bench: Bench) -> None:
    old = bench.tickets.keep("digest", bench.ticket(began=1.0))
    bench.tickets.keep("another", bench.ticket("young", began=4e9))
    assert bench.tickets.older_than(3600.0) == [("digest", old)]


class BackendThatSeesNoJob(ObedientBackend):
    """It takes them, and then says of each that there is no trace of it."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.ended: list[str] = []

    async def submit(self, request: AllocationRequest) -> SubmitResult:
        return Created(ExternalHandle("slurm", f"17/{request.token}"))

    async def observe(self, handles: Sequence[ExternalHandle]) -> Mapping[ExternalHandle, Observation]:
        return {handle: Observation(Observed.GONE) for handle in handles}

    async def cancel(self, handle: ExternalHandle) -> None:
        self.ended.append(handle.value)


def test_a_proof_that_seems_gone_is_cancelled_all_the_same(tmp_path: Path) -> None:
    """Whoever was asked may be wrong, and nothing is to be left in the queue."""
    backend = BackendThatSeesNoJob()
    prover = JobProver(backend, lambda token: None, tmp_path / "state", tmp_path / "exchange", SlurmOptions())
    profile = ResourceProfile("one", "slurm", backend_options={"partition": "cpu"})
    result = asyncio.run(prover.prove("digest", profile, False, lambda why: None))
    assert result.ending is Ending.NO_VERDICT
    assert len(backend.ended) == 1
