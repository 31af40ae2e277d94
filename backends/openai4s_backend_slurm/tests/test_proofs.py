"""How long a proof of isolation holds, who waits for it, and what is said meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from openai4s_backend_slurm.isolation import Ending, IsolationProofs, ProofResult, Waiting
from openai4s_provisioner.orchestration.models import ResourceProfile
from openai4s_provisioner.orchestration.ports import IsolationVerdict

PROFILE = ResourceProfile("gpu", "slurm")
DAY_S = 86400.0
GOOD, BAD = IsolationVerdict(True), IsolationVerdict(False, "On c1: user namespaces are off")


class ProverThatCounts:
    def __init__(self, verdict: IsolationVerdict = GOOD) -> None:
        self.verdict = verdict
        self.ending = Ending.VERDICT
        self.proven_at = 0.0
        self.runs = 0
        self.ended: list[str] = []
        self.configured = "one"
        self.gate = asyncio.Event()
        self.gate.set()

    def configuration(self, profile: ResourceProfile, private_network: bool) -> str:
        return f"{self.configured}-{private_network}"

    async def prove(
        self, digest: str, profile: ResourceProfile, private_network: bool, waiting: Waiting
    ) -> ProofResult:
        self.runs += 1
        waiting("others with higher priority come first")
        await self.gate.wait()
        return ProofResult(self.ending, self.verdict, self.proven_at)

    async def end(self, digest: str) -> None:
        self.ended.append(digest)


class Bench:
    def __init__(self, base: Path, verdict: IsolationVerdict = GOOD, patience_s: float = 5.0) -> None:
        self.now = 1_800_000_000.0
        self.prover = ProverThatCounts(verdict)
        self.record = base / "state" / "slurm" / "isolation"
        self.patience_s = patience_s
        self.proofs = self.opened()

    def opened(self) -> IsolationProofs:
        return IsolationProofs(self.prover, self.record, 7 * DAY_S, lambda: self.now, self.patience_s)

    async def ask(self, private_network: bool = False) -> IsolationVerdict:
        self.prover.proven_at = self.now
        return await self.proofs.verdict(PROFILE, private_network)


def lives(scenario: Callable[[], Awaitable[None]]) -> None:
    async def life() -> None:
        await scenario()

    asyncio.run(life())


def test_one_proof_holds_and_outlives_the_server(tmp_path: Path) -> None:
    async def scenario() -> None:
        here = Bench(tmp_path)
        assert (await here.ask()).verified
        assert (await here.ask()).verified
        here.proofs = here.opened()
        assert (await here.ask()).verified
        assert here.prover.runs == 1
        assert here.record.stat().st_mode & 0o777 == 0o600

    lives(scenario)


def test_another_configuration_and_another_network_are_proven_anew(tmp_path: Path) -> None:
    async def scenario() -> None:
        here = Bench(tmp_path)
        await here.ask()
        await here.ask(private_network=True)
        here.prover.configured = "two"
        await here.ask()
        assert here.prover.runs == 3

    lives(scenario)


def test_a_proof_ages_and_is_made_anew_before_anybody_has_to_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        here = Bench(tmp_path)
        await here.ask()
        here.now += 4 * DAY_S
        assert (await here.ask()).verified
        await asyncio.gather(*here.proofs._running.values())
        assert here.prover.runs == 2
        here.now += 4 * DAY_S
        assert (await here.ask()).verified, "the second proof holds"
        await asyncio.gather(*here.proofs._running.values())

    lives(scenario)


async def renewed(here: Bench) -> None:
    """Ask, and wait for whatever that set going."""
    await here.ask()
    await asyncio.gather(*here.proofs._running.values())


def test_a_renewal_that_finds_sessions_reachable_takes_the_proof_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        here = Bench(tmp_path)
        await here.ask()
        here.now += 4 * DAY_S
        here.prover.verdict = BAD
        await renewed(here)
        assert await here.ask() == BAD
        here.proofs = here.opened()
        assert await here.ask() == BAD, "not in another process either"

    lives(scenario)


def test_a_renewal_that_comes_to_no_result_takes_nothing_back_and_is_not_made_again_by_everybody(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        here = Bench(tmp_path)
        await here.ask()
        here.now += 4 * DAY_S
        here.prover.verdict, here.prover.ending = BAD, Ending.NO_VERDICT
        for _ in range(10):
            here.proofs = here.opened()  # the next process
            await renewed(here)
            here.now += 60
            assert (await here.ask()).verified
            await asyncio.gather(*here.proofs._running.values())
        assert here.prover.runs == 2
        here.now += 3600
        await renewed(here)
        assert here.prover.runs == 3

    lives(scenario)


def test_what_is_ended_leaves_nothing_and_what_is_open_is_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        here = Bench(tmp_path, BAD)
        here.prover.ending = Ending.OPEN
        await here.ask()
        assert here.prover.ended == []
        here.now += 11
        here.prover.ending = Ending.NO_VERDICT
        await here.ask()
        assert here.prover.ended == ["one-False"]

    lives(scenario)


def test_whoever_gives_up_leaves_the_proof_as_it_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        here = Bench(tmp_path, patience_s=0.05)
        here.prover.gate.clear()
        await here.ask()
        await here.proofs.close()
        assert here.prover.ended == []
        assert not here.record.exists()

    lives(scenario)


def test_a_proof_that_ran_long_ago_is_as_old_as_that(tmp_path: Path) -> None:
    """It was begun by a process that nobody came back to."""

    async def scenario() -> None:
        here = Bench(tmp_path)
        here.prover.proven_at = here.now - 4 * DAY_S
        await here.proofs.verdict(PROFILE, False)
        await renewed(here)
        assert here.prover.runs == 2

    lives(scenario)


def test_an_aged_proof_counts_no_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        here = Bench(tmp_path)
        await here.ask()
        here.now += 8 * DAY_S
        here.prover.verdict = BAD
        assert await here.ask() == BAD

    lives(scenario)


def test_a_proof_of_the_future_counts_for_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        here = Bench(tmp_path)
        await here.ask()
        here.now -= DAY_S
        await here.ask()
        assert here.prover.runs == 2

    lives(scenario)


def test_those_who_ask_together_share_one_job(tmp_path: Path) -> None:
    async def scenario() -> None:
        here = Bench(tmp_path)
        answers = await asyncio.gather(*(here.ask() for _ in range(20)))
        assert all(answer.verified for answer in answers)
        assert here.prover.runs == 1

    lives(scenario)


def test_a_failure_leaves_nothing_and_is_soon_asked_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        here = Bench(tmp_path, BAD)
        assert await here.ask() == BAD
        assert await here.ask() == BAD
        assert here.prover.runs == 1
        assert not here.record.parent.parent.exists()
        here.now += 11
        here.prover.verdict = GOOD
        assert (await here.ask()).verified

    lives(scenario)


def test_a_check_that_must_queue_is_explained_and_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        here = Bench(tmp_path, patience_s=0.05)
        here.prover.gate.clear()
        verdict = await here.ask()
        assert not verdict.verified
        assert "It is being checked that sessions of profile 'gpu' are isolated" in verdict.sentence
        assert "others with higher priority come first" in verdict.sentence
        here.prover.gate.set()
        await asyncio.gather(*here.proofs._running.values())
        assert (await here.ask()).verified
        assert here.prover.runs == 1

    lives(scenario)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"proofs": []}', '{"proofs": {"one-False": "yesterday"}}', "\0"])
def test_a_record_that_cannot_be_read_proves_nothing(tmp_path: Path, content: str) -> None:
    async def scenario() -> None:
        here = Bench(tmp_path)
        here.record.parent.mkdir(parents=True)
        here.record.write_text(content)
        here.record.chmod(0o600)
        assert (await here.ask()).verified
        assert here.prover.runs == 1

    lives(scenario)


def test_a_record_that_others_could_have_written_proves_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        here = Bench(tmp_path)
        await here.ask()
        here.record.chmod(0o666)
        await here.ask()
        assert here.prover.runs == 2

    lives(scenario)
